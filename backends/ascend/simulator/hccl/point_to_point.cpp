// Messages between two ranks, and exchanges in which every rank has something else for every other.
#include "../cann/device.h"
#include "queue.h"
#include "types.h"

using namespace simulator;

namespace {

struct Part {  // of a buffer, in bytes
  size_t offset, size;
};

void send_bytes(Communicator& group, const void* data, uint64_t count, HcclDataType type, uint32_t to) {
  group.send(words("a message", count, type), static_cast<const char*>(data), count * size_of(type), to);
}
Bytes receive_bytes(Communicator& group, uint64_t count, HcclDataType type, uint32_t from) {
  return group.receive(words("a message", count, type), from);
}

std::vector<Part> equal_parts(uint32_t ranks, size_t size) {
  std::vector<Part> parts;
  for (uint32_t rank = 0; rank < ranks; rank++) parts.push_back({rank * size, size});
  return parts;
}
std::vector<Part> parts_of(uint32_t ranks, const void* counts, const void* offsets, HcclDataType type) {
  std::vector<Part> parts;
  for (uint32_t rank = 0; rank < ranks; rank++)
    parts.push_back({static_cast<const uint64_t*>(offsets)[rank] * size_of(type),
                     static_cast<const uint64_t*>(counts)[rank] * size_of(type)});
  return parts;
}

HcclResult all_to_all(const void* send, const std::vector<Part>& out, const void* receive, const std::vector<Part>& in,
                      HcclComm comm, aclrtStream stream) {
  return queue(stream, const_cast<void*>(receive), [=] {
    Communicator& group = of(comm);
    Pieces pieces;
    const auto call = [](size_t bytes) { return "HcclAlltoAll of " + std::to_string(bytes) + " bytes"; };
    for (uint32_t to = 0; to < group.size; to++)
      group.send(call(out[to].size), static_cast<const char*>(send) + out[to].offset, out[to].size, to);
    for (uint32_t from = 0; from < group.size; from++)
      pieces.push_back({in[from].offset, group.receive(call(in[from].size), from)});
    return pieces;
  });
}

}  // namespace

EXPORTED HcclResult HcclSend(void* buffer, uint64_t count, HcclDataType type, uint32_t to, HcclComm comm,
                             aclrtStream stream) {
  if (!can_move(type)) return refuse(words("HcclSend", count, type), "not a type that this chip's HCCL moves");
  return queue(stream, nullptr, [=] {
    send_bytes(of(comm), buffer, count, type, to);
    return Pieces{};
  });
}
EXPORTED HcclResult HcclRecv(void* buffer, uint64_t count, HcclDataType type, uint32_t from, HcclComm comm,
                             aclrtStream stream) {
  return queue(stream, buffer, [=] { return Pieces{{0, receive_bytes(of(comm), count, type, from)}}; });
}
// All of a batch are sent before any is received: two ranks that name each other do not wait for one another.
EXPORTED HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm comm, aclrtStream stream) {
  const std::vector<HcclSendRecvItem> batch(items, items + count);
  return queue(stream, nullptr, [=] {
    Pieces pieces;
    for (const auto& item : batch)
      if (item.sendRecvType == HCCL_SEND) send_bytes(of(comm), item.buf, item.count, item.dataType, item.remoteRank);
    for (const auto& item : batch)
      if (item.sendRecvType == HCCL_RECV)  // each into its own buffer: the offset is the address
        pieces.push_back(
            {reinterpret_cast<size_t>(item.buf), receive_bytes(of(comm), item.count, item.dataType, item.remoteRank)});
    return pieces;
  });
}
EXPORTED HcclResult HcclAlltoAll(const void* send, uint64_t send_count, HcclDataType send_type, const void* receive,
                                 uint64_t receive_count, HcclDataType receive_type, HcclComm comm, aclrtStream stream) {
  const uint32_t ranks = of(comm).size;
  return all_to_all(send, equal_parts(ranks, send_count * size_of(send_type)), receive,
                    equal_parts(ranks, receive_count * size_of(receive_type)), comm, stream);
}
EXPORTED HcclResult HcclAlltoAllV(const void* send, const void* send_counts, const void* send_offsets,
                                  HcclDataType send_type, const void* receive, const void* receive_counts,
                                  const void* receive_offsets, HcclDataType receive_type, HcclComm comm,
                                  aclrtStream stream) {
  const uint32_t ranks = of(comm).size;
  return all_to_all(send, parts_of(ranks, send_counts, send_offsets, send_type), receive,
                    parts_of(ranks, receive_counts, receive_offsets, receive_type), comm, stream);
}
