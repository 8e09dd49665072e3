// A libjpeg-turbo decompressor that reads from memory and reports errors without leaving C.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdio>
// jpeglib.h needs size_t and FILE.
#include <jpeglib.h>

#include "types.h"

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001003
#error "custom_op needs libjpeg-turbo 2.1.3 or newer; this jpeglib.h is older or of another libjpeg"
#endif

namespace custom_op {

// Note [Jumps and destructors]
// libjpeg reports errors by a callback that must not return. error_exit_cb jumps to the phase that
// is running. A longjmp over a C++ object with a destructor is undefined, so every function that
// calls setjmp is `noexcept`, holds plain values only and returns a status; the caller throws.
struct ErrorContext {
  jpeg_error_mgr pub;
  jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

// Points `errors` at its callbacks. Warnings mean damaged pixels: they end the work like errors do.
jpeg_error_mgr* install(ErrorContext& errors);

// The source manager: all bytes are there from the start, the end of them is an error.
void install_source(j_decompress_ptr cinfo, jpeg_source_mgr& source, Bytes jpeg);

class Session {
 public:
  // `keep_markers` saves APPn and COM segments in cinfo().marker_list.
  explicit Session(bool keep_markers = false);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Starts over on `jpeg` and reads its header. Throws JpegError for what cannot be decoded and
  // for images of more than `max_pixels`.
  void read_header(Bytes jpeg, int64_t max_pixels);

  // Starts over on `jpeg` and reads its header, nothing checked. False on an error.
  bool restart(Bytes jpeg) noexcept;

  jpeg_decompress_struct& cinfo() { return cinfo_; }
  ErrorContext& errors() { return errors_; }
  [[noreturn]] void fail() const { throw JpegError(errors_.message); }

 private:
  const bool keep_markers_;
  ErrorContext errors_;
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct cinfo_{};
};

}  // namespace custom_op
