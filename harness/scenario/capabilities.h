// What this machine can share, from the answers of the probe, and the reasons
// for skipped tests.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>

#include "scenario.h"

namespace ipclab {

/// The capabilities that a test may need. A capability is an attribute plus, in
/// most cases, a small real attempt (probe.cu). The names are the names in the
/// probe's document.
inline const Need legacy_memory{"legacy_memory"};  ///< cudaIpcGetMemHandle
inline const Need legacy_events{"legacy_events"};  ///< cudaIpcGetEventHandle
inline const Need vmm{"vmm"};                      ///< cuMemCreate
inline const Need vmm_fd{"vmm_fd"};  ///< … exported to a descriptor
inline const Need fabric{"fabric"};  ///< … created as fabric memory
/// cuLogicalEndpointCreate of an endpoint that can be exported
inline const Need endpoints{"endpoints"};
/// cuLogicalEndpointCreate of a multicast endpoint
inline const Need endpoint_teams{"endpoint_teams"};
inline const Need pools{"pools"};        ///< cudaMallocAsync
inline const Need pool_fd{"pool_fd"};    ///< a pool exported to a descriptor
inline const Need host_vmm{"host_vmm"};  ///< cuMemCreate, location HOST
inline const Need numa_vmm{"numa_vmm"};  ///< … location HOST_NUMA, node 0
inline const Need host_pools{"host_pools"};  ///< a pool, location HOST
inline const Need numa_pools{"numa_pools"};  ///< … location HOST_NUMA, node 0
/// cuMemGetHandleForAddressRange gives a dma-buf, as the attribute says
inline const Need dma_buf{"dma_buf"};
/// … that a process maps without CUDA, as the attribute says
inline const Need dma_buf_mmap{"dma_buf_mmap"};
/// cuImportExternalMemory imports memory of cuMemCreate. No sentence says what
/// can be imported; this needs no graphics API.
inline const Need external_memory{"external_memory"};
inline const Need peer_access{"peer_access"};  ///< GPU 0 reaches GPU 1
inline const Need managed{"managed"};          ///< cudaMallocManaged
inline const Need tegra{"tegra"};              ///< an integrated GPU
inline const Need mig{"mig"};                  ///< GPU 0 is a MIG instance
/// cuCheckpointProcessGetState answers.
inline const Need checkpoints{"checkpoints"};
/// cuCtxRecordEvent succeeds.
inline const Need context_events{"context_events"};
/// cuGreenCtxCreate and cuGreenCtxRecordEvent succeed.
inline const Need green_contexts{"green_contexts"};
/// What the suite assumes and no sentence promises: while kernels hold four
/// streams of a process, work of a fifth stream and work of another process are
/// done. The Programming Guide says of streams that such behaviour "is not
/// guaranteed" (6.2.8.5 of CUDA 12). Most tests hold one stream; a test that
/// would blame the driver for missing progress names this need.
inline const Need progress{"progress"};

/// May this process create namespaces of processes, mounts and IPC? This needs
/// no GPU, so the probe does not check it. Instead, missing() tries to create
/// them in a new process.
inline const Need namespaces{"namespaces"};

/// Why `need` is not met, in one line; std::nullopt if it is met. Reads the
/// document that IPCLAB_CAPABILITIES names. If the variable is not set, runs
/// this program's own probe in a new process. Throws std::runtime_error if the
/// document or the probe gives no answer.
std::optional<std::string> missing(const Need& need);

/// May this process open an IMEX channel, which fabric handles need? The
/// reference model has no device files, so its profile or a variable gives the
/// answer.
bool has_imex_channel();

}  // namespace ipclab
