# Device code: every row of csrc/gpu/kernels/common/kernels.def compiled for every target it names, by clang from the
# PyPI package ziglang (no ROCm, no CUDA toolkit), and embedded as raw bytes in a generated C file, device_objects.c,
# which fills the tables of csrc/gpu/objects.h. A build without that compiler embeds nothing and says why; so does info.
#
#   MMF_GPU_ARCHS        targets, joined by ; or , (gfx942, sm_90a); "none": no device code
#   MMF_DEVICE_CLANG     another clang (its ld.lld is looked for beside it, then in PATH: MMF_DEVICE_LLD)
#   MMF_DEVICE_OBJECTS   a folder of ready objects, as `python -m matmul_fused info --objects DIR` writes it: nothing is
#                        compiled; it must hold every kernel of MMF_GPU_ARCHS
#   MMF_PTXAS            NVIDIA's assembler: cubins are embedded beside the PTX where it is found; "": no cubins
set(MMF_GPU_ARCHS "gfx90a;gfx942;gfx950;gfx1100;gfx1201;sm_80;sm_90a" CACHE STRING "GPU targets, or none")
set(MMF_DEVICE_CLANG "" CACHE FILEPATH "clang for device code instead of ziglang's")
set(MMF_DEVICE_LLD "" CACHE FILEPATH "ld.lld for device code instead of ziglang's")
set(MMF_DEVICE_OBJECTS "" CACHE PATH "Folder of ready device objects")

set(MMF_KERNELS "${CMAKE_CURRENT_SOURCE_DIR}/csrc/gpu/kernels")
set(MMF_DEVICE_BUILD "${CMAKE_CURRENT_BINARY_DIR}/device")

# C++14 is what hipRTC compiles by default. One division in 2.5 units in the last place costs a third of an exact one;
# the bounds of the activations allow it. A cuid would be a symbol made of the source's path: without it, the same source
# gives the same bytes wherever it lies.
set(MMF_DEVICE_FLAGS -std=c++14 -O3 -Wall -Wextra -Werror "-I${CMAKE_CURRENT_SOURCE_DIR}/csrc")
set(MMF_HIP_FLAGS -x hip --cuda-device-only -nogpuinc -nogpulib -mcode-object-version=5 -fuse-cuid=none
    -fno-hip-fp32-correctly-rounded-divide-sqrt)
# Constants hoisted out of the loops of the epilogue fill the scalar registers, and then spill.
set(MMF_AMDGPU_FLAGS --target=amdgcn-amd-amdhsa -O3 -nogpulib -mcode-object-version=5 -mllvm -disable-machine-licm)
# Kernels that have their registers to themselves: no s_nop between dependent instructions of the epilogue. Of others it
# doubles the registers, and halves the waves.
set(MMF_CDNA_FLAGS -mllvm -amdgpu-sched-strategy=max-ilp)
# A cuda-path that does not exist: an installed toolkit would change the code.
set(MMF_CUDA_FLAGS -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-path=/nonexistent --cuda-feature=+ptx80)

# Set in the caller: clang and lld, commands as lists; or note, why there is no compiler.
function(mmf_find_device_compiler)
  if(MMF_DEVICE_CLANG)
    if(MMF_DEVICE_LLD)
      set(lld "${MMF_DEVICE_LLD}")
    else()
      cmake_path(GET MMF_DEVICE_CLANG PARENT_PATH beside)
      find_program(lld ld.lld HINTS "${beside}" NO_CACHE REQUIRED)
    endif()
    set(clang "${MMF_DEVICE_CLANG}" PARENT_SCOPE)
    set(lld "${lld}" PARENT_SCOPE)
    return()
  endif()
  if(Python_Interpreter_FOUND)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))"
      OUTPUT_VARIABLE zig OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(clang "${zig};clang" PARENT_SCOPE)
      set(lld "${zig};ld.lld" PARENT_SCOPE)
      return()
    endif()
  endif()
  set(note "the build found no device compiler (PyPI's ziglang, or -DMMF_DEVICE_CLANG=clang)" PARENT_SCOPE)
endfunction()

# The file NAME.hip for a target and what it may include, in the variables source and parts of the caller: the tables of
# csrc/problem, the files of common/ and of its own folder. A family of both vendors has a file in a folder of each.
# clang writes no dependencies of device code.
function(mmf_source_files name arch)
  set(folders common nvidia)
  if(arch MATCHES "^gfx")
    set(folders common amd cdna rdna)
  endif()
  list(TRANSFORM folders REPLACE "(.+)" "${MMF_KERNELS}/\\1/${name}.hip")
  file(GLOB source CONFIGURE_DEPENDS ${folders})
  list(LENGTH source count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "kernels.def: ${count} files for ${arch} are called ${name}.hip in the folders of ${MMF_KERNELS}")
  endif()
  cmake_path(GET source PARENT_PATH own)
  set(parts)
  foreach(folder "${CMAKE_CURRENT_SOURCE_DIR}/csrc/problem" "${MMF_KERNELS}/common" "${own}")
    file(GLOB files CONFIGURE_DEPENDS "${folder}/*.h" "${folder}/*.inc" "${folder}/*.def")
    list(APPEND parts ${files})
  endforeach()
  set(source "${source}" PARENT_SCOPE)
  set(parts ${parts} PARENT_SCOPE)
endfunction()

# Objects of one row for one target, appended to objects as arch|kernel|file.
function(mmf_compile_kernel arch kernel name)
  mmf_source_files(${name} ${arch})
  set(base "${MMF_DEVICE_BUILD}/${arch}/${kernel}")
  file(MAKE_DIRECTORY "${MMF_DEVICE_BUILD}/${arch}")
  if(arch MATCHES "^gfx")
    set(object "${base}.co")
    set(own_flags)
    if(source MATCHES "/kernels/cdna/")
      set(own_flags ${MMF_CDNA_FLAGS})
    endif()
    # Its own link step of -x hip looks for a program called lld: stop at IR, go on from there.
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${clang} ${MMF_HIP_FLAGS} ${MMF_DEVICE_FLAGS} --offload-arch=${arch} -DMMF_KERNEL=${kernel} -S
              -emit-llvm "${source}" -o "${base}.ll"
      COMMAND ${clang} ${MMF_AMDGPU_FLAGS} ${own_flags} -mcpu=${arch} -c -x ir "${base}.ll" -o "${base}.o"
      COMMAND ${lld} -shared -s "${base}.o" -o "${object}"
      BYPRODUCTS "${base}.ll" "${base}.o"
      DEPENDS "${source}" ${parts}
      COMMENT "${arch} ${kernel}" VERBATIM)
  else()
    set(object "${base}.ptx")
    set(compact "${CMAKE_CURRENT_SOURCE_DIR}/cmake/compact_ptx.py")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${clang} ${MMF_CUDA_FLAGS} ${MMF_DEVICE_FLAGS} --cuda-gpu-arch=${arch} -DMMF_KERNEL=${kernel} -S
              "${source}" -o "${base}.s"
      COMMAND "${Python_EXECUTABLE}" "${compact}" "${base}.s" "${object}"
      BYPRODUCTS "${base}.s"
      DEPENDS "${source}" ${parts} "${compact}"
      COMMENT "${arch} ${kernel}" VERBATIM)
    if(MMF_PTXAS)
      add_custom_command(
        OUTPUT "${base}.cubin"
        COMMAND "${MMF_PTXAS}" -arch=${arch} "${object}" -o "${base}.cubin"
        DEPENDS "${object}"
        COMMENT "${arch} ${kernel} cubin" VERBATIM)
      list(APPEND objects "${arch}|${kernel}|${base}.cubin")
    endif()
  endif()
  set(objects ${objects} "${arch}|${kernel}|${object}" PARENT_SCOPE)
endfunction()

# The row's objects among the ready ones.
function(mmf_take_kernel arch kernel)
  set(found)
  foreach(kind co cubin ptx)
    set(object "${MMF_DEVICE_OBJECTS}/${arch}/${kernel}.${kind}")
    if(EXISTS "${object}")
      list(APPEND found "${arch}|${kernel}|${object}")
    endif()
  endforeach()
  if(NOT found)
    message(FATAL_ERROR "MMF_DEVICE_OBJECTS: ${MMF_DEVICE_OBJECTS} has no ${kernel} for ${arch}; "
                        "-DMMF_GPU_ARCHS says which targets to take")
  endif()
  list(APPEND objects ${found})
  set(objects ${objects} PARENT_SCOPE)
endfunction()

# MMF_GPU_ARCHS as a list in archs; empty for "none".
function(mmf_list_archs)
  string(REPLACE "," ";" archs "${MMF_GPU_ARCHS}")
  if(archs STREQUAL "none")
    set(archs)
  elseif(NOT archs)
    message(FATAL_ERROR "MMF_GPU_ARCHS is empty; it names GPU targets (gfx942;sm_90a), or is \"none\"")
  endif()
  foreach(arch IN LISTS archs)
    if(NOT arch MATCHES "^(gfx[0-9a-f]+|sm_[0-9]+a?)$")
      message(FATAL_ERROR "MMF_GPU_ARCHS: \"${arch}\" is no GPU target (gfx942, sm_90a) and not \"none\"")
    endif()
  endforeach()
  set(archs ${archs} PARENT_SCOPE)
endfunction()

# Every row for every target of archs; sets objects.
function(mmf_all_kernels)
  set(objects)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${MMF_KERNELS}/common/kernels.def")
  file(STRINGS "${MMF_KERNELS}/common/kernels.def" rows REGEX "^MMF_GPU_(KERNEL|STEP)\\(")
  foreach(arch IN LISTS archs)
    string(TOUPPER "${arch}" tag)
    foreach(row IN LISTS rows)
      if(NOT row MATCHES "^MMF_GPU_(KERNEL|STEP)\\(([a-z0-9_]+), ([a-z0-9_]+), .*, ([A-Z0-9_ |]+)\\)$")
        message(FATAL_ERROR "kernels.def: a row that cannot be read: ${row}")
      endif()
      set(kernel "${CMAKE_MATCH_2}")
      set(name "${CMAKE_MATCH_3}")
      string(REPLACE " | " ";" targets "${CMAKE_MATCH_4}")
      if(CMAKE_MATCH_1 STREQUAL "KERNEL")
        string(PREPEND name "gemm_")
      endif()
      if(NOT targets STREQUAL "ALL" AND NOT tag IN_LIST targets)
        continue()
      elseif(MMF_DEVICE_OBJECTS)
        mmf_take_kernel(${arch} ${kernel})
      else()
        mmf_compile_kernel(${arch} ${kernel} ${name})
      endif()
    endforeach()
  endforeach()
  set(objects ${objects} PARENT_SCOPE)
endfunction()

# Write device_objects.c, only if it changes.
function(mmf_write_device_objects output source_text note)
  set(bytes)
  set(names)
  set(rows)
  set(number 0)
  foreach(object IN LISTS objects)
    string(REPLACE "|" ";" object "${object}")
    list(GET object 0 arch)
    list(GET object 1 kernel)
    list(GET object 2 file)
    set(form BYTES)
    if(file MATCHES "ptx$")
      set(form TEXT)
    endif()
    string(APPEND bytes "${form}(mmf_object_${number}, \"${file}\")\n")
    string(APPEND names "extern const unsigned char mmf_object_${number}[], mmf_object_${number}_end[];\n")
    string(APPEND rows "    {\"${arch}\", \"${kernel}\", mmf_object_${number}, mmf_object_${number}_end},\n")
    math(EXPR number "${number} + 1")
  endforeach()
  configure_file("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/device_objects.c.in" "${output}" @ONLY)
endfunction()

# Add device_objects.c to the sources in the variable of the caller.
function(mmf_add_device_code sources)
  find_package(Python 3.11 COMPONENTS Interpreter QUIET)
  find_program(MMF_PTXAS ptxas)
  set(note "")
  set(objects)
  mmf_list_archs()
  if(NOT archs)
    set(note "it was built with MMF_GPU_ARCHS=none")
  else()
    if(NOT MMF_DEVICE_OBJECTS)
      mmf_find_device_compiler()
    endif()
    if(NOT note)
      mmf_all_kernels()
    endif()
  endif()
  list(LENGTH objects count)
  message(STATUS "Device code: ${count} objects ${note}")

  # The generic kernel as one text: hipRTC compiles it for GPUs that no object is for.
  if(objects)
    mmf_source_files(gemm_simt gfx)
    set(text "${MMF_DEVICE_BUILD}/gemm_simt.txt")
    set(flatten "${CMAKE_CURRENT_SOURCE_DIR}/cmake/flatten.py")
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/csrc" OUTPUT_VARIABLE name)
    add_custom_command(
      OUTPUT "${text}"
      COMMAND "${Python_EXECUTABLE}" "${flatten}" "${CMAKE_CURRENT_SOURCE_DIR}/csrc" "${name}" "${text}"
      DEPENDS "${source}" ${parts} "${flatten}" VERBATIM)
  else()
    set(text "${MMF_DEVICE_BUILD}/no_device_code.txt")
    file(CONFIGURE OUTPUT "${text}" CONTENT "" @ONLY)
  endif()

  set(output "${MMF_DEVICE_BUILD}/device_objects.c")
  mmf_write_device_objects("${output}" "${text}" "${note}")
  list(TRANSFORM objects REPLACE "^.*\\|" "" OUTPUT_VARIABLE files)
  set_source_files_properties("${output}" PROPERTIES OBJECT_DEPENDS "${files};${text}")
  set(${sources} ${${sources}} "${output}" PARENT_SCOPE)
endfunction()
