#include "jpeg/trim.h"

#include <algorithm>
#include <numeric>

#include "jpeg/cropped_header.h"

namespace custom_op {
namespace {

int64_t round_down(int64_t value, int64_t step) { return value / step * step; }
int64_t round_up(int64_t value, int64_t step) { return divide_up(value, step) * step; }

// Grows the cover to the edges of restart segments.
void align(const Header& header, McuCover& cover) {
  const int64_t interval = header.restart_interval, per_row = header.mcus_per_row;
  const bool splits_rows = per_row % interval == 0;
  const int64_t col_step = splits_rows ? interval : per_row;
  // Only every row_step-th row starts with a segment.
  const int64_t row_step = interval / std::gcd(interval, per_row);
  const int64_t first_row = round_down(cover.first_row, row_step);
  const int64_t first_col = round_down(cover.first_col, col_step);
  const int64_t last_row =
      std::min(round_up(cover.first_row + cover.rows, row_step), header.mcu_rows);
  const int64_t last_col = std::min(round_up(cover.first_col + cover.cols, col_step), per_row);
  cover.top += (cover.first_row - first_row) * header.mcu_height;
  cover.left += (cover.first_col - first_col) * header.mcu_width;
  cover.height =
      std::min(last_row * header.mcu_height, header.height) - first_row * header.mcu_height;
  cover.width = std::min(last_col * header.mcu_width, header.width) - first_col * header.mcu_width;
  cover.first_row = first_row;
  cover.first_col = first_col;
  cover.rows = last_row - first_row;
  cover.cols = last_col - first_col;
}

// The segments of the cover, in order. A segment that spans rows is listed once.
std::vector<Range> covered(const Header& header, const McuCover& cover,
                           const std::vector<Range>& segments) {
  std::vector<Range> chosen;
  const int64_t interval = header.restart_interval, per_row = header.mcus_per_row;
  int64_t next = 0;
  for (int64_t row = cover.first_row; row < cover.first_row + cover.rows; ++row) {
    const int64_t first = row * per_row + cover.first_col;
    const int64_t last = (first + cover.cols - 1) / interval;
    for (int64_t i = std::max(first / interval, next); i <= last; ++i) {
      chosen.push_back(segments[static_cast<size_t>(i)]);
    }
    next = last + 1;
  }
  return chosen;
}

}  // namespace

Trimmed trim(Bytes jpeg, const Header& header, const Box& box) {
  std::vector<Range> segments;
  if (!header.baseline || header.restart_interval == 0 || !index_restarts(jpeg, header, segments)) {
    return {std::vector<uint8_t>(jpeg.data, jpeg.data + jpeg.size), box.top, box.left};
  }
  McuCover cover = cover_of(header, box, 1);
  align(header, cover);
  Trimmed out{{}, cover.top, cover.left};
  write_cropped_header(jpeg, header, cover, header.restart_interval, out.jpeg);
  int restart = 0;
  for (const Range range : covered(header, cover, segments)) {
    out.jpeg.insert(out.jpeg.end(), jpeg.data + range.begin, jpeg.data + range.end);
    out.jpeg.insert(out.jpeg.end(), {0xFF, static_cast<uint8_t>(0xD0 + restart++ % 8)});
  }
  out.jpeg.back() = 0xD9;  // EOI instead of one more restart marker
  return out;
}

}  // namespace custom_op
