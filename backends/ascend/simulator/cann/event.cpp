// Events. One that is recorded on an empty stream is complete; a compute stream that waits for one blocks its caller,
// since compute is what the caller does next.
#include <acl/acl.h>

#include <chrono>
#include <memory>

#include "device.h"
#include "stream.h"

using namespace simulator;

namespace {
struct Event {
  Stream* stream = nullptr;
  uint64_t ticket = 0;                                                                     // 0: nothing to wait for
  std::shared_ptr<std::atomic<int64_t>> time = std::make_shared<std::atomic<int64_t>>(0);  // nanoseconds

  bool is_done() const { return !ticket || stream->is_done(ticket); }
};
Event& of(aclrtEvent handle) { return *static_cast<Event*>(handle); }
int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
}  // namespace

EXPORTED aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) {
  *event = new Event;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) {
  return aclrtCreateEventExWithFlag(event, flag);
}
EXPORTED aclError aclrtDestroyEvent(aclrtEvent event) {
  delete &of(event);
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream) {
  Event& event = of(handle);
  event.stream = &Stream::of(stream);
  auto time = event.time;
  if (event.stream->is_done()) {
    event.ticket = 0;
    *time = now();
  } else {
    event.ticket = event.stream->submit([time] { *time = now(); });
  }
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtResetEvent(aclrtEvent event, aclrtStream) {
  of(event).ticket = 0;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  *status = of(event).is_done() ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  *status = of(event).is_done() ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return of(event).ticket ? of(event).stream->wait(of(event).ticket) : ACL_SUCCESS;
}
EXPORTED aclError aclrtStreamWaitEvent(aclrtStream handle, aclrtEvent event) {
  Stream& waiting = Stream::of(handle);
  Stream* awaited = of(event).stream;
  const uint64_t ticket = of(event).ticket;
  if (!ticket || awaited == &waiting) return ACL_SUCCESS;
  if (waiting.is_done()) return awaited->wait(ticket);
  waiting.submit([=] { awaited->wait(ticket); });
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  *milliseconds = (*of(end).time - *of(start).time) / 1e6f;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
  *microseconds = *of(event).time / 1000;
  return ACL_SUCCESS;
}
