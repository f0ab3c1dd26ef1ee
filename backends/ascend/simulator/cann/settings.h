// Environment variables set the simulated machine; docs/ascend-simulator.md lists them.
#pragma once
#include <cstdlib>

namespace simulator {

inline const char* text_setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

inline long number_setting(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? std::atol(value) : otherwise;
}

inline long devices() { return number_setting("ASCEND_SIMULATOR_DEVICES", 8); }
inline long memory_mb() { return number_setting("ASCEND_SIMULATOR_MEMORY_MB", 65536); }
inline long delay_ms() { return number_setting("ASCEND_SIMULATOR_DELAY_MS", 50); }
inline const char* soc() { return text_setting("ASCEND_SIMULATOR_SOC", "Ascend910B3"); }
inline const char* cann() { return text_setting("ASCEND_SIMULATOR_CANN", "8.5.0"); }

}  // namespace simulator
