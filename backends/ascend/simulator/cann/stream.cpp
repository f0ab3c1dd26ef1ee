#include "stream.h"

#include <chrono>
#include <cstdio>
#include <thread>

#include "settings.h"

namespace simulator {
namespace {
constexpr aclError kFailed = 507000;  // ACL_ERROR_RT_INTERNAL_ERROR
}

std::atomic<long> Stream::pending_{0};
std::atomic<int> Stream::created_{0};

Stream& Stream::of(aclrtStream handle) {
  static Stream& standard = *new Stream(0);
  return handle ? *static_cast<Stream*>(handle) : standard;
}

std::set<Stream*>& Stream::all() {
  static auto& streams = *new std::set<Stream*>;
  return streams;
}

std::mutex& Stream::all_lock() {
  static auto& lock = *new std::mutex;
  return lock;
}

uint64_t Stream::submit(Work exchange, Work deliver) {
  std::lock_guard<std::mutex> guard(lock_);
  if (!has_worker_) {
    std::thread([this] { work(); }).detach();  // streams are never destroyed, see streams.cpp
    has_worker_ = true;
  }
  tasks_.push_back({std::move(exchange), std::move(deliver), ++submitted_});
  ++pending_;
  changed_.notify_all();
  return submitted_;
}

void Stream::work() {
  for (;;) {
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [&] { return !tasks_.empty(); });
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    guard.unlock();
    run(task);
    guard.lock();
    completed_ = task.ticket;
    --pending_;
    changed_.notify_all();
  }
}

void Stream::run(Task& task) {
  try {
    task.exchange();
    if (!task.deliver) return;
    {
      std::unique_lock<std::mutex> guard(lock_);
      changed_.wait_for(guard, std::chrono::milliseconds(delay_ms()), [&] { return wanted_ >= task.ticket; });
    }
    task.deliver();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulated HCCL: %s\n", error.what());
    remember_error(error.what());
    std::lock_guard<std::mutex> guard(lock_);
    failed_ = true;
  }
}

aclError Stream::wait(uint64_t ticket) {
  std::unique_lock<std::mutex> guard(lock_);
  if (ticket == kAll) ticket = submitted_;
  if (ticket > wanted_) wanted_ = ticket;
  changed_.notify_all();
  changed_.wait(guard, [&] { return completed_ >= ticket; });
  return failed_ ? kFailed : ACL_SUCCESS;
}

bool Stream::is_done(uint64_t ticket) {
  std::lock_guard<std::mutex> guard(lock_);
  return completed_ >= (ticket == kAll ? submitted_ : ticket);
}

}  // namespace simulator
