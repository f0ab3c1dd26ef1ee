// Device memory is host memory, counted per device. Fresh memory is filled with bytes that read as NaN, so that a
// kernel which relies on zeros is noticed.
#include <acl/acl.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "device.h"
#include "settings.h"
#include "stream.h"

using namespace simulator;

namespace {
constexpr aclError kInvalidValue = 107000;
constexpr aclError kOutOfMemory = 207001;  // the only code that torch_npu turns into OutOfMemoryError
constexpr size_t kAlignment = 512;         // as CANN allocates

struct Block {
  size_t size;
  int device;
};
std::mutex lock;
auto& blocks = *new std::unordered_map<void*, Block>;
std::array<size_t, 64> used{};

size_t total() { return static_cast<size_t>(memory_mb()) << 20; }
}  // namespace

EXPORTED aclError aclrtMalloc(void** pointer, size_t size, aclrtMemMallocPolicy) {
  *pointer = nullptr;
  const int device = device_or_first();
  {
    std::lock_guard<std::mutex> guard(lock);
    if (used[device] + size > total() || posix_memalign(pointer, kAlignment, size ? size : kAlignment))
      return kOutOfMemory;
    blocks[*pointer] = {size, device};
    used[device] += size;
  }
  std::memset(*pointer, 0xFF, size);
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtMallocAlign32(void** pointer, size_t size, aclrtMemMallocPolicy policy) {
  return aclrtMalloc(pointer, size, policy);
}
EXPORTED aclError aclrtFree(void* pointer) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = blocks.find(pointer);
  if (found == blocks.end()) return kInvalidValue;
  used[found->second.device] -= found->second.size;
  blocks.erase(found);
  std::free(pointer);
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* all) {
  std::lock_guard<std::mutex> guard(lock);
  *all = total();
  *free = total() - used[device_or_first()];
  return ACL_SUCCESS;
}

EXPORTED aclError aclrtMallocHost(void** pointer, size_t size) {
  return posix_memalign(pointer, kAlignment, size ? size : kAlignment) ? kOutOfMemory : ACL_SUCCESS;
}
EXPORTED aclError aclrtMallocHostWithCfg(void** pointer, uint64_t size, aclrtMallocConfig*) {
  return aclrtMallocHost(pointer, size);
}
EXPORTED aclError aclrtFreeHost(void* pointer) {
  std::free(pointer);
  return ACL_SUCCESS;
}

EXPORTED aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind) {
  if (size > room) return kInvalidValue;
  std::memmove(to, from, size);
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind kind,
                                   aclrtStream stream) {
  const aclError error = Stream::of(stream).wait();
  return error ? error : aclrtMemcpy(to, room, from, size, kind);
}
EXPORTED aclError aclrtMemset(void* to, size_t room, int32_t value, size_t size) {
  if (size > room) return kInvalidValue;
  std::memset(to, value, size);
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t size, aclrtStream stream) {
  const aclError error = Stream::of(stream).wait();
  return error ? error : aclrtMemset(to, room, value, size);
}
