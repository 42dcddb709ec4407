package component

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// FieldKind says what the text of a metadata value means.
type FieldKind uint8

// The kinds.
const (
	Text     FieldKind = iota
	Bool               // true, yes, on, y, t, 1 or false, no, off, n, f, 0; case does not matter
	Int                // decimal, 64 bits
	Duration           // Go duration such as 1m30s, not negative
	Size               // bytes: see ParseSize
)

// Field declares one metadata name of a component.
type Field struct {
	Name     string
	Kind     FieldKind
	Required bool
	Default  string   // used when the name is not given; empty = the zero value of Kind
	Aliases  []string // other names for the same thing

	// Secret says that the value is a secret: it is never shown, and writing it into the
	// file instead of referring to it is worth a warning.
	Secret bool
	// Security says that the field makes things safer: a near miss of its name is an
	// error, because ignoring it would silently leave the door open.
	Security bool
	// Reference says that the value must come from a reference: written into the file, or
	// empty, it is an error.
	Reference bool
	// Quoted says that the value must be a string to YAML: other readers of the file refuse
	// a number or truth value without quotes.
	Quoted bool
	// Refused, when not empty, says why this name cannot be used although it is known.
	Refused string
	// Check refuses values beyond what Kind says. It gets the text; may be nil. An error
	// that is no *fault.Error is taken for the second half of a sentence about the value.
	Check func(text string) error
}

// ParseSize reads a number of bytes: decimal digits with an optional unit, B, k, M, G for
// powers of 1000 or Ki, Mi, Gi for powers of 1024, a B behind any of them allowed. "4Mi",
// "4MiB" and "4194304" are the same. Case matters only in so far as it tells nothing else.
func ParseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "BKMGkmgi")
	factor, ok := sizeUnit(text[len(digits):])
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ok || n < 0 || digits[0] == '+' {
		return 0, errors.New("is not a size such as 512Ki, 4Mi or 1000000")
	}
	if n > math.MaxInt64/factor {
		return 0, errors.New("is too large")
	}
	return n * factor, nil
}

func sizeUnit(unit string) (int64, bool) {
	if unit == "" || unit == "B" {
		return 1, true
	}
	switch strings.ToLower(strings.TrimSuffix(unit, "B")) {
	case "k":
		return 1e3, true
	case "m":
		return 1e6, true
	case "g":
		return 1e9, true
	case "ki":
		return 1 << 10, true
	case "mi":
		return 1 << 20, true
	case "gi":
		return 1 << 30, true
	}
	return 0, false
}

// ParseBool reads the spellings of Bool.
func ParseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "yes", "on", "y", "t", "1":
		return true, nil
	case "false", "no", "off", "n", "f", "0":
		return false, nil
	}
	return false, errors.New("is neither true nor false")
}

// value is the parsed text of one field.
type value struct {
	text   string
	number int64 // Int, Size, Duration in nanoseconds, Bool as 0 or 1
	given  bool  // stands in the file
}

// parse reads text as Kind says. The error is the second half of a sentence about the
// text and does not repeat it.
func (f Field) parse(text string) (value, error) {
	v := value{text: text}
	var err error
	switch f.Kind {
	case Bool:
		var on bool
		if on, err = ParseBool(text); on {
			v.number = 1
		}
	case Int:
		if v.number, err = strconv.ParseInt(text, 10, 64); err != nil {
			err = errors.New("is not a whole number")
		}
	case Duration:
		v.number, err = parseDuration(text)
	case Size:
		v.number, err = ParseSize(text)
	}
	return v, err
}

func parseDuration(text string) (int64, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errors.New("is not a duration such as 500ms, 5s or 1m30s")
	}
	return int64(d), nil
}
