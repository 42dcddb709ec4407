package fault

import "unicode/utf8"

// cutMark ends a text that was shortened.
const cutMark = "..."

// Shorten returns text with at most limit bytes, for messages and records of bounded size. A longer text is cut between
// two characters and ends with "...".
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	end := max(0, limit-len(cutMark))
	for from := end; end > 0 && end > from-utf8.UTFMax && !utf8.RuneStart(text[end]); {
		end--
	}
	return text[:end] + cutMark[:min(limit, len(cutMark))]
}
