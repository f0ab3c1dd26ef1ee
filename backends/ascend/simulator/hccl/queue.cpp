#include "queue.h"

#include <cstdio>
#include <cstring>
#include <memory>

#include "../cann/stream.h"
#include "types.h"

namespace simulator {

std::string words(const char* function, uint64_t count, HcclDataType type, const std::string& rest) {
  return std::string(function) + " of " + std::to_string(count) + " " + name_of(type) +
         (rest.empty() ? "" : ", " + rest);
}

HcclResult refuse(const std::string& call, const char* why) {
  std::fprintf(stderr, "simulated HCCL: %s: %s\n", call.c_str(), why);
  remember_error(call + ": " + why);
  return HCCL_E_NOT_SUPPORT;
}

HcclResult queue(aclrtStream stream, void* receive, std::function<Pieces()> exchange) {
  auto result = std::make_shared<Pieces>();
  Stream::of(stream).submit([=] { *result = exchange(); },
                            [=] {
                              for (const Piece& piece : *result)
                                std::memcpy(static_cast<char*>(receive) + piece.offset, piece.bytes.data(),
                                            piece.bytes.size());
                            });
  return HCCL_SUCCESS;
}

}  // namespace simulator
