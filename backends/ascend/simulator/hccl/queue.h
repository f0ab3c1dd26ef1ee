// A call of HCCL: checked and queued on its stream by the caller, carried out by the stream's thread.
#pragma once
#include <acl/acl.h>

#include "communicator.h"
#include "third_party/hccl/inc/hccl/hccl.h"

namespace simulator {

struct Piece {  // of a result, and where it belongs in the receiving buffer
  size_t offset;
  Bytes bytes;
};
using Pieces = std::vector<Piece>;

inline Communicator& of(HcclComm handle) { return *static_cast<Communicator*>(handle); }

// What a rank calls, in words; ranks whose words differ are told so.
std::string words(const char* function, uint64_t count, HcclDataType type, const std::string& rest = "");

HcclResult refuse(const std::string& call, const char* why);
HcclResult queue(aclrtStream stream, void* receive, std::function<Pieces()> exchange);

}  // namespace simulator
