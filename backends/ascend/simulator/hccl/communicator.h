// One group of ranks. Bytes go from rank to rank through files in a folder of the group's own, each written under
// another name first, so that whoever sees a file sees all of it.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace simulator {

using Bytes = std::vector<char>;

class Communicator {
 public:
  Communicator(std::string name, uint32_t size, uint32_t rank);

  // Every rank posts its bytes, and `visit` gets those of all ranks in their order. `call` says in words what the rank
  // called: ranks that call different things would hang on a device or exchange rubbish, and here it is an error.
  void exchange(const std::string& call, const char* data, size_t bytes,
                const std::function<void(uint32_t rank, const char* data, size_t bytes)>& visit);
  void send(const std::string& call, const char* data, size_t bytes, uint32_t to);
  Bytes receive(const std::string& call, uint32_t from);
  // Say that this rank has read all that it will. The last rank to do so removes the folder: what the others posted
  // last may not have been read before. Done for all groups when the process ends.
  void close();

  const std::string name;
  const uint32_t size, rank;

 private:
  void post(const std::string& file, const std::string& call, const char* data, size_t bytes);
  Bytes fetch(const std::string& file, const std::string& call, uint32_t from);
  void remove(const std::string& file);
  std::string closed_by(uint32_t other) const;

  const std::string folder_;
  std::atomic<uint64_t> exchanges_{0};
  std::vector<uint64_t> sent_, received_;  // messages by the other rank
  std::atomic<bool> failed_{false}, closed_{false};
};

}  // namespace simulator
