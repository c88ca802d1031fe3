/* Devices: what they are, which is current on this thread, waiting for one. */
#include "rt.h"

#include <stdio.h>
#include <string.h>

enum { SIZE_R0000 = 792, SIZE_R0600 = 1472, NAME_R0000 = 396, NAME_R0600 = 1160 };
enum { MOST_THREADS_X = 1024, MOST_GRID_X = 0x7fffffff, MOST_GRID_YZ = 65536 };

static bool exists(int device)
{
    return device >= 0 && device < rt.device_count;
}

hipError_t rt_hipInit(unsigned int flags)
{
    return flags ? hipErrorInvalidValue : hipSuccess;
}

hipError_t rt_hipDriverGetVersion(int *version)
{
    if (!version)
        return hipErrorInvalidValue;
    *version = rt.version;
    return hipSuccess;
}

hipError_t rt_hipRuntimeGetVersion(int *version)
{
    return rt_hipDriverGetVersion(version);
}

hipError_t rt_hipGetDeviceCount(int *count)
{
    if (!count)
        return hipErrorInvalidValue;
    *count = rt.device_count;
    return rt.device_count ? hipSuccess : hipErrorNoDevice;
}

hipError_t rt_hipGetDevice(int *device)
{
    if (!device)
        return hipErrorInvalidValue;
    *device = rt_thread.device;
    return hipSuccess;
}

hipError_t rt_hipSetDevice(int device)
{
    if (!exists(device))
        return hipErrorInvalidDevice;
    rt_thread.device = device;
    return hipSuccess;
}

hipError_t rt_hipDeviceGet(hipDevice_t *device, int ordinal)
{
    if (!device)
        return hipErrorInvalidValue;
    if (!exists(ordinal))
        return hipErrorInvalidDevice;
    *device = ordinal;
    return hipSuccess;
}

hipError_t rt_hipDeviceGetName(char *name, int length, hipDevice_t device)
{
    if (!exists(device))
        return hipErrorInvalidDevice;
    if (!name || length <= 0)
        return hipErrorInvalidValue;
    snprintf(name, (size_t)length, "%s", rt.devices[device].arch->marketing_name);
    return hipSuccess;
}

hipError_t rt_hipDeviceGetUuid(hipUUID *uuid, hipDevice_t device)
{
    if (!uuid || !exists(device))
        return uuid ? hipErrorInvalidDevice : hipErrorInvalidValue;
    char text[sizeof uuid->bytes + 1];
    snprintf(text, sizeof text, "GPU-%012d", device);
    memcpy(uuid->bytes, text, sizeof uuid->bytes);
    return hipSuccess;
}

hipError_t rt_hipDeviceGetPCIBusId(char *text, int length, int device)
{
    if (!exists(device))
        return hipErrorInvalidDevice;
    if (!text || length < 13)
        return hipErrorInvalidValue;
    snprintf(text, (size_t)length, "0000:%02x:00.0", RT_PCI_BUS(device));
    return hipSuccess;
}

hipError_t rt_hipDeviceGetByPCIBusId(int *device, const char *text)
{
    unsigned domain, bus, slot;
    if (!device || !text || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return hipErrorInvalidValue;
    for (int i = 0; i < rt.device_count; i++) {
        if (domain == 0 && slot == 0 && bus == (unsigned)RT_PCI_BUS(i)) {
            *device = i;
            return hipSuccess;
        }
    }
    return hipErrorInvalidValue;
}

hipError_t rt_hipDeviceTotalMem(size_t *bytes, hipDevice_t device)
{
    if (!exists(device))
        return hipErrorInvalidDevice;
    if (!bytes)
        return hipErrorInvalidValue;
    *bytes = rt.devices[device].arch->memory_bytes;
    return hipSuccess;
}

hipError_t rt_hipDeviceComputeCapability(int *major, int *minor, hipDevice_t device)
{
    if (!exists(device))
        return hipErrorInvalidDevice;
    if (!major || !minor)
        return hipErrorInvalidValue;
    *major = rt.devices[device].arch->major;
    *minor = rt.devices[device].arch->minor;
    return hipSuccess;
}

hipError_t rt_hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device)
{
    if (!value)
        return hipErrorInvalidValue;
    if (!exists(device))
        return hipErrorInvalidDevice;
    const struct hipsim_arch *arch = rt.devices[device].arch;
    const struct {
        hipDeviceAttribute_t attribute;
        int64_t value;
    } answers[] = {
        {hipDeviceAttributeEccEnabled, 0},
        {hipDeviceAttributeCanMapHostMemory, 1},
        {hipDeviceAttributeClockRate, arch->clock_khz},
        {hipDeviceAttributeConcurrentKernels, 1},
        {hipDeviceAttributeCooperativeLaunch, 1},
        {hipDeviceAttributeIntegrated, 0},
        {hipDeviceAttributeL2CacheSize, (int64_t)arch->l2_bytes},
        {hipDeviceAttributeComputeCapabilityMajor, arch->major},
        {hipDeviceAttributeComputeCapabilityMinor, arch->minor},
        {hipDeviceAttributeManagedMemory, 1},
        {hipDeviceAttributeMaxBlockDimX, MOST_THREADS_X},
        {hipDeviceAttributeMaxBlockDimY, MOST_THREADS_X},
        {hipDeviceAttributeMaxBlockDimZ, MOST_THREADS_X},
        {hipDeviceAttributeMaxGridDimX, MOST_GRID_X},
        {hipDeviceAttributeMaxGridDimY, MOST_GRID_YZ},
        {hipDeviceAttributeMaxGridDimZ, MOST_GRID_YZ},
        {hipDeviceAttributeMaxThreadsPerBlock, arch->max_threads_per_block},
        {hipDeviceAttributeMaxThreadsPerMultiProcessor, arch->max_threads_per_cu},
        {hipDeviceAttributeMemoryBusWidth, arch->memory_bus_bits},
        {hipDeviceAttributeMemoryClockRate, arch->memory_clock_khz},
        {hipDeviceAttributeMultiprocessorCount, arch->compute_units},
        {hipDeviceAttributePhysicalMultiProcessorCount, arch->compute_units},
        {hipDeviceAttributePciBusId, RT_PCI_BUS(device)},
        {hipDeviceAttributePciDeviceId, 0},
        {hipDeviceAttributePciDomainID, 0},
        {hipDeviceAttributeMaxRegistersPerBlock, arch->registers_per_block},
        {hipDeviceAttributeMaxSharedMemoryPerBlock, (int64_t)arch->lds_bytes},
        {hipDeviceAttributeSharedMemPerBlockOptin, (int64_t)arch->lds_bytes},
        {hipDeviceAttributeSharedMemPerMultiprocessor, (int64_t)arch->lds_bytes},
        {hipDeviceAttributeMaxSharedMemoryPerMultiprocessor, (int64_t)arch->lds_bytes},
        {hipDeviceAttributeTotalGlobalMem, INT32_MAX}, /* an int cannot hold it */
        {hipDeviceAttributeUnifiedAddressing, 1},
        {hipDeviceAttributeWarpSize, arch->wavefront_size},
        {hipDeviceAttributeMemoryPoolsSupported, 1},
        {hipDeviceAttributeWallClockRate, 100000},
        {hipDeviceAttributeNumberOfXccs,
         arch->family == HIPSIM_CDNA3 || arch->family == HIPSIM_CDNA4 ? 8 : 1},
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        if (answers[i].attribute == attribute) {
            *value = (int)answers[i].value;
            return hipSuccess;
        }
    }
    return hipErrorInvalidValue;
}

/* Write one of the two layouts; what this simulation does not know is zero. */
static void write_properties(unsigned char *out, int ordinal, bool r0600)
{
    const struct hipsim_arch *arch = rt.devices[ordinal].arch;
    memset(out, 0, r0600 ? SIZE_R0600 : SIZE_R0000);
    snprintf((char *)out, 256, "%s", arch->marketing_name);
    snprintf((char *)out + (r0600 ? NAME_R0600 : NAME_R0000), 256, "%s", arch->gcn_arch_name);
#define HIP_PROPERTY(field, type, r0000_offset, r0600_offset, answer)                              \
    {                                                                                              \
        type value = (type)(answer);                                                               \
        memcpy(out + (r0600 ? r0600_offset : r0000_offset), &value, sizeof value);                 \
    }
#define HIP_PROPERTY_NEW(field, type, offset, answer)                                              \
    if (r0600) {                                                                                   \
        type value = (type)(answer);                                                               \
        memcpy(out + offset, &value, sizeof value);                                                \
    }
#include "properties.def"
#undef HIP_PROPERTY
#undef HIP_PROPERTY_NEW
    int threads[3] = {MOST_THREADS_X, MOST_THREADS_X, MOST_THREADS_X};
    int grid[3] = {MOST_GRID_X, MOST_GRID_YZ, MOST_GRID_YZ};
    memcpy(out + (r0600 ? 324 : 284), threads, sizeof threads); /* maxThreadsDim */
    memcpy(out + (r0600 ? 336 : 296), grid, sizeof grid);       /* maxGridSize */
}

static hipError_t get_properties(void *properties, int device, bool r0600)
{
    if (!properties)
        return hipErrorInvalidValue;
    if (!exists(device))
        return hipErrorInvalidDevice;
    write_properties(properties, device, r0600);
    return hipSuccess;
}

/* Under its first name the old layout is kept, for programs built before HIP 6. */
hipError_t rt_hipGetDeviceProperties(hipDeviceProp_t *properties, int device)
{
    return get_properties(properties, device, false);
}

hipError_t rt_hipGetDevicePropertiesR0000(hipDeviceProp_t *properties, int device)
{
    return get_properties(properties, device, false);
}

hipError_t rt_hipGetDevicePropertiesR0600(hipDeviceProp_t *properties, int device)
{
    return get_properties(properties, device, true);
}

hipError_t rt_hipDeviceSynchronize(void)
{
    hipError_t error = rt_capture_forbids_sync();
    return error ? error : rt_sync_device(rt_thread.device);
}

hipError_t rt_hipDeviceReset(void)
{
    rt_violation(rt_thread.device, "call",
                 "hipDeviceReset pulls the device from under every library of the process");
    return hipErrorNotSupported;
}

hipError_t rt_hipDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 1;
    if (greatest)
        *greatest = -1;
    return hipSuccess;
}

hipError_t rt_hipDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (!can)
        return hipErrorInvalidValue;
    if (!exists(device) || !exists(peer))
        return hipErrorInvalidDevice;
    *can = device != peer;
    return hipSuccess;
}

hipError_t rt_hipDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    if (flags)
        return hipErrorInvalidValue;
    if (!exists(peer) || peer == rt_thread.device)
        return hipErrorInvalidDevice;
    if (rt.devices[rt_thread.device].peer[peer])
        return hipErrorPeerAccessAlreadyEnabled;
    rt.devices[rt_thread.device].peer[peer] = true;
    return hipSuccess;
}

hipError_t rt_hipDeviceDisablePeerAccess(int peer)
{
    if (!exists(peer))
        return hipErrorInvalidDevice;
    if (!rt.devices[rt_thread.device].peer[peer])
        return hipErrorPeerAccessNotEnabled;
    rt.devices[rt_thread.device].peer[peer] = false;
    return hipSuccess;
}
