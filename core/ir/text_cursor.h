// A position in a text being parsed, and how every parse error is worded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace backplane::ir {

class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : text_(text) {}

  std::size_t position() const { return position_; }
  void set_position(std::size_t position) { position_ = position; }
  bool at_end() const { return position_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const {
    return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0';
  }
  void advance(std::size_t count = 1) { position_ += count; }
  std::string_view slice(std::size_t begin, std::size_t end) const {
    return text_.substr(begin, end - begin);
  }

  // Spaces, line ends and // comments.
  void skip_space();
  // After skipping space: takes `symbol` where it stands here. Declining moves nothing, so that
  // the comment behind a node is still there for trailing_comment.
  bool take(std::string_view symbol);
  // As take, for a word: not where a longer word starts so.
  bool take_word(std::string_view word);
  Status expect(std::string_view symbol);
  // The identifier here, empty where there is none.
  std::string_view identifier();
  // The run of characters that numbers and words are made of, empty where there is none.
  std::string_view literal();
  Result<std::int64_t> integer();
  // A string in double quotes.
  Result<std::string> quoted();
  // The text of a comment that ends this line, without // and spaces; empty where there is none.
  std::string_view trailing_comment();

  // "Line 3, column 5: expected X, found Y."
  Status error(std::string_view expected) const { return error_at(position_, expected); }
  Status error_at(std::size_t position, std::string_view expected) const;
  // "Line 3, column 5: <sentence>"
  Status refuse_at(std::size_t position, std::string_view sentence) const;

 private:
  std::string place(std::size_t position) const;
  std::string found(std::size_t position) const;

  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace backplane::ir
