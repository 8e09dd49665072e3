#include "pixels/libjpeg_rows.h"

#include <algorithm>
#include <cstring>

namespace custom_op {
namespace {

// The most rows that libjpeg returns at once: 4 blocks of 8.
constexpr int kRowsAtOnce = 32;

int at_once(int64_t rows) { return static_cast<int>(std::min<int64_t>(rows, kRowsAtOnce)); }

// a * b / 255, rounded.
int scale(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

// Converts inverted CMYK, as Adobe programs store it and Pillow always assumes.
void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    const int light = cmyk[3];
    for (int c = 0; c < 3; ++c) {
      rgb[c] = static_cast<uint8_t>(std::clamp(light - scale(255 - cmyk[c], light), 0, 255));
    }
  }
}

}  // namespace

void LibjpegRows::request_rgb() {
  auto& cinfo = libjpeg_.cinfo();
  cinfo.out_color_space = cinfo.num_components == 4 ? JCS_CMYK : JCS_RGB;
  cinfo.do_fancy_upsampling = TRUE;
  cinfo.dct_method = JDCT_ISLOW;
}

bool LibjpegRows::read(const Part& part, RowSink& sink) {
  const auto& cinfo = libjpeg_.cinfo();
  const size_t stride = static_cast<size_t>(cinfo.output_width) * cinfo.output_components;
  place_scratch_rows(stride);
  for (int64_t left = part.skip; left > 0;) {
    const int got = read_phase(row_pointers_.data(), at_once(left));
    if (got == 0) return false;
    left -= got;
  }
  const auto first = static_cast<size_t>(part.first_column) * cinfo.output_components;
  const size_t row_bytes = static_cast<size_t>(part.width) * 3;
  sink.begin();
  for (int64_t left = part.count; left > 0;) {
    const int got = read_phase(row_pointers_.data(), at_once(left));
    if (got == 0) return false;
    for (int i = 0; i < got; ++i) {
      std::memcpy(sink.next(), rgb_of(row_pointers_[i] + first, part.width), row_bytes);
      sink.written();
    }
    left -= got;
  }
  return true;
}

int LibjpegRows::read_phase(JSAMPROW* rows, int wanted) noexcept {
  if (setjmp(libjpeg_.errors().jump)) return 0;
  return static_cast<int>(
      jpeg_read_scanlines(&libjpeg_.cinfo(), rows, static_cast<JDIMENSION>(wanted)));
}

bool LibjpegRows::read_to_the_end() noexcept {
  if (setjmp(libjpeg_.errors().jump)) return false;
  auto& cinfo = libjpeg_.cinfo();
  const JDIMENSION rest = cinfo.output_height - cinfo.output_scanline;
  if (rest == 0) return true;
  // Skipping all remaining rows would not read their data.
  if (rest > 1) jpeg_skip_scanlines(&cinfo, rest - 1);
  return jpeg_read_scanlines(&cinfo, row_pointers_.data(), 1) == 1;
}

// Note [Scratch rows in cache]
// libjpeg-turbo's AVX2 color conversion writes rows that are 32-byte aligned with streaming stores,
// which bypass the cache: reading the row afterwards waits for memory. So no scratch row is
// aligned.
void LibjpegRows::place_scratch_rows(size_t row_bytes) {
  constexpr size_t kAlignment = 32;
  const size_t stride = (row_bytes + kAlignment - 1) / kAlignment * kAlignment;
  scratch_.resize(stride * kRowsAtOnce + 2 * kAlignment);
  const auto misaligned = reinterpret_cast<uintptr_t>(scratch_.data()) % kAlignment;
  uint8_t* first = scratch_.data() + (kAlignment - misaligned) + kAlignment / 2;
  row_pointers_.resize(kRowsAtOnce);
  for (int i = 0; i < kRowsAtOnce; ++i) row_pointers_[i] = first + stride * i;
}

const uint8_t* LibjpegRows::rgb_of(const uint8_t* row, int64_t width) {
  if (libjpeg_.cinfo().out_color_space == JCS_RGB) return row;
  rgb_.resize(static_cast<size_t>(width) * 3);
  cmyk_to_rgb(row, width, rgb_.data());
  return rgb_.data();
}

}  // namespace custom_op
