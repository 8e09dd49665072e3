// A libjpeg-turbo decompressor that reads from memory.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdio>
// jpeglib.h needs size_t and FILE.
#include <jpeglib.h>

#include "types.h"

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001003
#error \
    "custom_op needs libjpeg-turbo 2.1.3 or newer; this jpeglib.h is older or not libjpeg-turbo's"
#endif

namespace custom_op {

// Note [Jumps and destructors]
// libjpeg reports errors through a callback that must not return. error_exit_cb jumps to the phase
// that is running. A longjmp over a C++ object with a destructor is undefined behavior, so every
// function that calls setjmp is `noexcept`, holds only plain values and returns a status; its
// caller throws.
struct ErrorContext {
  jpeg_error_mgr pub;
  jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

// A warning that means damaged pixels counts as an error.
class Decompressor {
 public:
  // `keep_markers` saves APPn and COM segments in cinfo().marker_list.
  explicit Decompressor(bool keep_markers = false);
  ~Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  // Restarts with `jpeg` and reads its header. Throws JpegError if the image cannot be decoded or
  // has more than `max_pixels`.
  void read_header(Bytes jpeg, int64_t max_pixels);

  // Restarts with `jpeg` and reads its header, without checks. Returns false on an error.
  bool restart(Bytes jpeg) noexcept;

  jpeg_decompress_struct& cinfo() { return cinfo_; }
  ErrorContext& errors() { return errors_; }
  // Throws the error of the failed phase. Frees the image first: a decompressor can live as long
  // as its thread, and a progressive file takes 2 bytes for every sample.
  [[noreturn]] void fail() {
    jpeg_abort_decompress(&cinfo_);
    throw JpegError(errors_.message);
  }

 private:
  const bool keep_markers_;
  ErrorContext errors_;
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct cinfo_{};
};

}  // namespace custom_op
