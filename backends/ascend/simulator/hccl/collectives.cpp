// Collective calls. Counts are in elements; a rank's share of the longer buffer is its count times its rank.
#include "../cann/device.h"
#include "queue.h"
#include "types.h"

using namespace simulator;

namespace {

constexpr const char* kNoType = "not a type that this chip's HCCL moves";
constexpr const char* kNoReduction = "not a type that this chip's HCCL reduces";

// The part [skip, skip + count) of every rank's elements, reduced in the order of ranks: the same on all of them.
Bytes reduced(Communicator& group, const std::string& call, const char* data, uint64_t all, uint64_t skip,
              uint64_t count, HcclDataType type, HcclReduceOp operation) {
  const size_t one = size_of(type);
  Bytes sum;
  group.exchange(call, data, all * one, [&](uint32_t rank, const char* other, size_t) {
    const char* part = other + skip * one;
    if (rank == 0)
      sum.assign(part, part + count * one);
    else
      reduce(sum.data(), part, count, type, operation);
  });
  return sum;
}

// Every rank's bytes if it is `from`, or everybody's, at their places.
Pieces gathered(Communicator& group, const std::string& call, const char* data, size_t bytes) {
  Pieces pieces;
  group.exchange(call, data, bytes, [&](uint32_t rank, const char* other, size_t size) {
    pieces.push_back({rank * size, Bytes(other, other + size)});
  });
  return pieces;
}

Pieces from_root(Communicator& group, const std::string& call, const char* data, size_t bytes, uint32_t root,
                 size_t skip, size_t count) {
  const bool mine = group.rank == root;
  Pieces pieces;
  group.exchange(call, data, mine ? bytes : 0, [&](uint32_t rank, const char* other, size_t) {
    if (rank == root) pieces.push_back({0, Bytes(other + skip, other + skip + count)});
  });
  return pieces;
}

const char* bytes_of(const void* buffer) { return static_cast<const char*>(buffer); }

}  // namespace

EXPORTED HcclResult HcclAllReduce(void* send, void* receive, uint64_t count, HcclDataType type, HcclReduceOp operation,
                                  HcclComm comm, aclrtStream stream) {
  const std::string call = words("HcclAllReduce", count, type, name_of(operation));
  if (!can_reduce(type, operation)) return refuse(call, kNoReduction);
  return queue(stream, receive,
               [=] { return Pieces{{0, reduced(of(comm), call, bytes_of(send), count, 0, count, type, operation)}}; });
}
EXPORTED HcclResult HcclReduce(void* send, void* receive, uint64_t count, HcclDataType type, HcclReduceOp operation,
                               uint32_t root, HcclComm comm, aclrtStream stream) {
  const std::string call = words("HcclReduce", count, type, name_of(operation) + " to " + std::to_string(root));
  if (!can_reduce(type, operation)) return refuse(call, kNoReduction);
  return queue(stream, receive, [=] {
    Bytes sum = reduced(of(comm), call, bytes_of(send), count, 0, count, type, operation);
    return of(comm).rank == root ? Pieces{{0, std::move(sum)}} : Pieces{};
  });
}
EXPORTED HcclResult HcclReduceScatter(void* send, void* receive, uint64_t count, HcclDataType type,
                                      HcclReduceOp operation, HcclComm comm, aclrtStream stream) {
  const std::string call = words("HcclReduceScatter", count, type, name_of(operation));
  if (!can_reduce(type, operation)) return refuse(call, kNoReduction);
  return queue(stream, receive, [=] {
    Communicator& group = of(comm);
    return Pieces{
        {0, reduced(group, call, bytes_of(send), count * group.size, count * group.rank, count, type, operation)}};
  });
}
EXPORTED HcclResult HcclAllGather(void* send, void* receive, uint64_t count, HcclDataType type, HcclComm comm,
                                  aclrtStream stream) {
  const std::string call = words("HcclAllGather", count, type);
  if (!can_move(type)) return refuse(call, kNoType);
  return queue(stream, receive, [=] { return gathered(of(comm), call, bytes_of(send), count * size_of(type)); });
}
EXPORTED HcclResult HcclBroadcast(void* buffer, uint64_t count, HcclDataType type, uint32_t root, HcclComm comm,
                                  aclrtStream stream) {
  const std::string call = words("HcclBroadcast", count, type, "from " + std::to_string(root));
  if (!can_move(type)) return refuse(call, kNoType);
  const size_t bytes = count * size_of(type);
  return queue(stream, buffer, [=] { return from_root(of(comm), call, bytes_of(buffer), bytes, root, 0, bytes); });
}
EXPORTED HcclResult HcclScatter(void* send, void* receive, uint64_t count, HcclDataType type, uint32_t root,
                                HcclComm comm, aclrtStream stream) {
  const std::string call = words("HcclScatter", count, type, "from " + std::to_string(root));
  if (!can_move(type)) return refuse(call, kNoType);
  const size_t one = count * size_of(type);
  return queue(stream, receive, [=] {
    Communicator& group = of(comm);
    return from_root(group, call, bytes_of(send), one * group.size, root, one * group.rank, one);
  });
}
EXPORTED HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
  return queue(stream, nullptr, [=] {
    of(comm).exchange("HcclBarrier", "", 0, [](uint32_t, const char*, size_t) {});
    return Pieces{};
  });
}
