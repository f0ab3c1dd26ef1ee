// Description of the machine: the chip's name, versions, and options that are stored and have no effect.
#include <acl/acl.h>
#include <acl/acl_op_compiler.h>
#include <acl/acl_rt.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "device.h"
#include "settings.h"

using namespace simulator;

namespace {
constexpr int64_t kCores = 24;
std::mutex lock;
auto& options = *new std::map<int, int64_t>;  // never destroyed: threads may outlive main
}  // namespace

EXPORTED const char* aclrtGetSocName() { return soc(); }
EXPORTED aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo, int64_t* value) {
  *value = kCores;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr, int64_t* value) {
  *value = kCores;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtGetDeviceUtilizationRate(int32_t, aclrtUtilizationInfo* rates) {
  std::memset(rates, 0, sizeof *rates);
  return ACL_SUCCESS;
}

EXPORTED aclError aclsysGetCANNVersion(aclCANNPackageName package, aclCANNPackageVersion* version) {
  const char* text = package == ACL_PKG_NAME_DRIVER ? "25.2.0" : cann();
  std::memset(version, 0, sizeof *version);
  std::snprintf(version->version, sizeof version->version, "%s", text);
  int parts[3] = {0, 0, 0};
  std::sscanf(text, "%d.%d.%d", &parts[0], &parts[1], &parts[2]);
  std::snprintf(version->majorVersion, sizeof version->majorVersion, "%d", parts[0]);
  std::snprintf(version->minorVersion, sizeof version->minorVersion, "%d", parts[1]);
  std::snprintf(version->releaseVersion, sizeof version->releaseVersion, "%d", parts[2]);
  return ACL_SUCCESS;
}
EXPORTED aclError aclsysGetVersionStr(char*, char* version) {
  std::strcpy(version, cann());
  return ACL_SUCCESS;
}

EXPORTED aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  std::lock_guard<std::mutex> guard(lock);
  options[option] = value;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  std::lock_guard<std::mutex> guard(lock);
  *value = options[option];
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  return aclrtSetSysParamOpt(option, value);
}
EXPORTED aclError aclrtCtxGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  return aclrtGetSysParamOpt(option, value);
}

// torch_npu asks only for JIT_COMPILE. "disable" (seven letters and the end) keeps it off the older kernels, which are
// compiled as graphs at their first call.
EXPORTED aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }
EXPORTED size_t aclGetCompileoptSize(aclCompileOpt) { return sizeof "disable"; }
EXPORTED aclError aclGetCompileopt(aclCompileOpt, char* value, size_t) {
  std::strcpy(value, "disable");
  return ACL_SUCCESS;
}

EXPORTED aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
EXPORTED aclError aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t* actual) {
  if (actual) *actual = timeout;
  return ACL_SUCCESS;
}
EXPORTED aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
EXPORTED void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}
EXPORTED aclError aclmdlInitDump() { return ACL_SUCCESS; }
EXPORTED aclError aclmdlSetDump(const char*) { return ACL_SUCCESS; }
EXPORTED aclError aclmdlFinalizeDump() { return ACL_SUCCESS; }
