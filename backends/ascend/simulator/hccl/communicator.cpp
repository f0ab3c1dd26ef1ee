#include "communicator.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "../cann/settings.h"

namespace simulator {
namespace {
constexpr size_t kHeader = 128;                 // in front of every message: the sender's call in words
constexpr long kEnoughSharedMemory = 1L << 30;  // containers often have 64 MiB

// Shared memory where there is enough of it, else the usual folder for temporary files.
std::string parent() {
  std::error_code none;
  const auto space = std::filesystem::space("/dev/shm", none);
  const bool enough = !none && static_cast<long>(space.available) >= kEnoughSharedMemory;
  return text_setting("ASCEND_SIMULATOR_FOLDER", enough ? "/dev/shm" : std::filesystem::temp_directory_path().c_str());
}

std::string file_of(const char* kind, uint64_t number, uint32_t from) {
  return kind + std::to_string(number) + "." + std::to_string(from);
}

void close_at_exit(Communicator* made) {
  static auto& open = *new std::vector<Communicator*>;
  static const pid_t owner = getpid();  // a forked child has copies of groups that are not its own
  static const int once = std::atexit([] {
    for (Communicator* group : open)
      if (getpid() == owner) group->close();
  });
  static std::mutex lock;
  std::lock_guard<std::mutex> guard(lock);
  (void)once;
  open.push_back(made);
}
}  // namespace

Communicator::Communicator(std::string name, uint32_t size, uint32_t rank)
    : name(name), size(size), rank(rank), folder_(parent() + "/" + name + "/"), sent_(size), received_(size) {
  mkdir(folder_.c_str(), 0700);  // by whichever rank is first
  close_at_exit(this);
}

void Communicator::exchange(const std::string& call, const char* data, size_t bytes,
                            const std::function<void(uint32_t, const char*, size_t)>& visit) {
  const uint64_t number = exchanges_++;
  post(file_of("all", number, rank), call, data, bytes);
  for (uint32_t from = 0; from < size; from++) {
    const Bytes got = fetch(file_of("all", number, from), call, from);
    visit(from, got.data() + kHeader, got.size() - kHeader);
  }
  // Who posted to this exchange has read all of the one before.
  if (number) remove(file_of("all", number - 1, rank));
}

void Communicator::send(const std::string& call, const char* data, size_t bytes, uint32_t to) {
  post(file_of("to", sent_[to]++, rank) + "." + std::to_string(to), call, data, bytes);
}

Bytes Communicator::receive(const std::string& call, uint32_t from) {
  const std::string file = file_of("to", received_[from]++, from) + "." + std::to_string(rank);
  Bytes got = fetch(file, call, from);
  remove(file);
  got.erase(got.begin(), got.begin() + kHeader);
  return got;
}

void Communicator::close() {
  if (closed_.exchange(true)) return;
  std::ofstream(closed_by(rank)).close();
  for (uint32_t other = 0; other < size; other++)
    if (!std::filesystem::exists(closed_by(other))) return;
  std::error_code none;  // another rank may be doing the same
  std::filesystem::remove_all(folder_, none);
}

std::string Communicator::closed_by(uint32_t other) const { return folder_ + file_of("closed", 0, other); }

void Communicator::post(const std::string& file, const std::string& call, const char* data, size_t bytes) {
  char header[kHeader] = {};
  std::strncpy(header, call.c_str(), kHeader - 1);
  const std::string unfinished = folder_ + "." + file;
  std::ofstream stream(unfinished, std::ios::binary);
  stream.write(header, kHeader).write(data, bytes);
  stream.close();
  if (!stream || std::rename(unfinished.c_str(), (folder_ + file).c_str())) {
    failed_ = true;
    throw std::runtime_error("cannot write to " + folder_ +
                             ": is there room? ASCEND_SIMULATOR_FOLDER names another folder");
  }
}

Bytes Communicator::fetch(const std::string& file, const std::string& call, uint32_t from) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(number_setting("HCCL_EXEC_TIMEOUT", 1836));
  std::ifstream stream;
  for (int tries = 0;; tries++) {
    stream.open(folder_ + file, std::ios::binary | std::ios::ate);
    if (stream) break;
    if (failed_) throw std::runtime_error(call + ": an earlier call of this group failed");
    if (Clock::now() > end) {
      failed_ = true;
      throw std::runtime_error(call + ": rank " + std::to_string(from) + " of " + std::to_string(size) +
                               " did not take part within HCCL_EXEC_TIMEOUT");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(tries < 200 ? 20 : 500));
  }
  Bytes got(stream.tellg());
  stream.seekg(0).read(got.data(), got.size());
  if (call != got.data()) {  // what follows in the header is zeros
    failed_ = true;
    throw std::runtime_error("rank " + std::to_string(rank) + " calls " + call + ", but rank " + std::to_string(from) +
                             " calls " + got.data());
  }
  return got;
}

void Communicator::remove(const std::string& file) { unlink((folder_ + file).c_str()); }

}  // namespace simulator
