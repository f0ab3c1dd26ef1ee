// The runtime's functions about streams.
#include <acl/acl.h>
#include <acl/acl_rt.h>
#include <unistd.h>

#include <vector>

#include "device.h"
#include "stream.h"

using namespace simulator;

namespace {
std::mutex lock;
auto& message = *new std::string;
}  // namespace

void simulator::remember_error(const std::string& words) {
  std::lock_guard<std::mutex> guard(lock);
  message = words;
}
EXPORTED const char* aclGetRecentErrMsg() {
  static thread_local std::string copy;
  std::lock_guard<std::mutex> guard(lock);
  copy = message;
  return copy.c_str();
}
EXPORTED aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
EXPORTED aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

EXPORTED long simulator_pending() { return Stream::pending(); }

EXPORTED aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  auto* created = new Stream(device_or_first());
  *stream = created;
  std::lock_guard<std::mutex> guard(Stream::all_lock());
  Stream::all().insert(created);
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtCreateStream(aclrtStream* stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }
// The object stays: events may still point to it, and its thread waits on it. torch_npu makes a few streams a process.
EXPORTED aclError aclrtDestroyStream(aclrtStream stream) {
  std::lock_guard<std::mutex> guard(Stream::all_lock());
  Stream::all().erase(&Stream::of(stream));
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }

EXPORTED aclError aclrtSynchronizeStream(aclrtStream stream) { return Stream::of(stream).wait(); }
EXPORTED aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) { return Stream::of(stream).wait(); }
EXPORTED aclError aclrtSynchronizeDevice() {
  std::vector<Stream*> own;
  {
    std::lock_guard<std::mutex> guard(Stream::all_lock());
    for (Stream* stream : Stream::all())
      if (current_device() < 0 || stream->device == current_device()) own.push_back(stream);
  }
  aclError error = ACL_SUCCESS;
  for (Stream* stream : own)
    if (aclError failed = stream->wait()) error = failed;
  return error;
}
EXPORTED aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return aclrtSynchronizeDevice(); }

EXPORTED aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  *status = Stream::of(stream).is_done() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  *id = Stream::of(stream).id;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
// Switched on for every stream where float16 saturates; here a kernel raises the flag for every stream.
EXPORTED aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_SUCCESS; }
EXPORTED aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* is_on) {
  *is_on = 1;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtLaunchHostFunc(aclrtStream stream, void (*function)(void*), void* arguments) {
  Stream::of(stream).submit([=] { function(arguments); });
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtProcessReport(int32_t) {  // polled by a thread of torch_npu's
  usleep(1000);
  return ACL_SUCCESS;
}
