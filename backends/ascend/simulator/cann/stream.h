// A stream of work. Kernels run at once on the calling thread, so a stream that only computes is always empty;
// communication is queued, and a thread of the stream's own works it off in order.
#pragma once
#include <acl/acl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>

namespace simulator {

class Stream {
 public:
  using Work = std::function<void()>;

  explicit Stream(int device) : device(device), id(++created_) {}
  static Stream& of(aclrtStream handle);  // the null handle is the default stream
  static std::set<Stream*>& all();        // guarded by all_lock()
  static std::mutex& all_lock();
  static long pending() { return pending_; }  // work of all streams that is not done

  // Queue work and return its ticket. `exchange` starts as soon as it is its turn; what it got is written by `deliver`,
  // which comes late unless somebody waits: whoever reads without waiting reads what was there before.
  uint64_t submit(Work exchange, Work deliver = nullptr);
  aclError wait(uint64_t ticket = kAll);  // an error if some work of this stream failed
  bool is_done(uint64_t ticket = kAll);

  const int device;
  const int id;

 private:
  static constexpr uint64_t kAll = ~0ull;
  struct Task {
    Work exchange, deliver;
    uint64_t ticket;
  };
  void work();
  void run(Task& task);

  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool has_worker_ = false;
  uint64_t submitted_ = 0, completed_ = 0, wanted_ = 0;
  bool failed_ = false;
  static std::atomic<long> pending_;
  static std::atomic<int> created_;
};

void remember_error(const std::string& words);  // for aclGetRecentErrMsg, which torch_npu puts into its exceptions

}  // namespace simulator
