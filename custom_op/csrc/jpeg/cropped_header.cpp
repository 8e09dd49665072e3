#include "jpeg/cropped_header.h"

#include <algorithm>

#include "jpeg/markers.h"

namespace custom_op {
namespace {

void put16(uint8_t* at, int64_t value) {
  at[0] = static_cast<uint8_t>(value >> 8);
  at[1] = static_cast<uint8_t>(value);
}

// APP0 and APP14 define the color space; other APPn segments and COM are metadata.
bool affects_pixels(uint8_t marker) {
  return marker == kSof0 || marker == kSof1 || marker == kDht || marker == kSos || marker == kDqt ||
         marker == kApp0 || marker == kApp14;
}

}  // namespace

McuCover cover_of(const Header& header, const Box& box) {
  constexpr int64_t kMargin = 1;
  const int64_t mcu_height = header.mcu_height, mcu_width = header.mcu_width;
  const int64_t first_row = std::max<int64_t>(box.top - kMargin, 0) / mcu_height;
  int64_t first_col = std::max<int64_t>(box.left - kMargin, 0) / mcu_width;
  const int64_t bottom = std::min(box.top + box.height + kMargin, header.height);
  const int64_t right = std::min(box.left + box.width + kMargin, header.width);
  const bool narrow = right - first_col * mcu_width <= mcu_width / 4;
  if (narrow && first_col > 0) --first_col;
  McuCover cover;
  cover.first_row = first_row;
  cover.first_col = first_col;
  cover.rows = divide_up(bottom, mcu_height) - first_row;
  cover.cols = divide_up(right, mcu_width) - first_col;
  cover.height = std::min(cover.rows * mcu_height, header.height - first_row * mcu_height);
  cover.width = std::min(cover.cols * mcu_width, header.width - first_col * mcu_width);
  cover.top = box.top - first_row * mcu_height;
  cover.left = box.left - first_col * mcu_width;
  return cover;
}

void write_cropped_header(Bytes jpeg, const Header& header, const McuCover& cover,
                          std::vector<uint8_t>& out) {
  out.assign({0xFF, 0xD8});
  for (const Segment& segment : header.segments) {
    if (!affects_pixels(segment.marker)) continue;
    const size_t at = out.size();
    out.insert(out.end(), jpeg.data + segment.begin, jpeg.data + segment.end);
    if (segment.marker != kSof0 && segment.marker != kSof1) continue;
    put16(&out[at + 5], cover.height);
    put16(&out[at + 7], cover.width);
    // The sampling factors of a single component have no meaning, but libjpeg groups rows by them.
    if (header.component_count == 1) out[at + 11] = 0x11;
  }
}

}  // namespace custom_op
