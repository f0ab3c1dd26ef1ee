// HCCL's data types: their sizes, their names, which reductions take them, and the reduction itself.
#pragma once
#include <string>

#include "third_party/hccl/inc/hccl/hccl_types.h"

namespace simulator {

size_t size_of(HcclDataType type);  // bytes
std::string name_of(HcclDataType type);
std::string name_of(HcclReduceOp operation);
bool can_move(HcclDataType type);
bool can_reduce(HcclDataType type, HcclReduceOp operation);
void reduce(char* into, const char* other, size_t count, HcclDataType type, HcclReduceOp operation);

}  // namespace simulator
