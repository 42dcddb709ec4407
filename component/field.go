package component

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// FieldKind is the type of a metadata value.
type FieldKind uint8

// The kinds.
const (
	Text     FieldKind = iota
	Bool               // true, yes, on, y, t, 1 or false, no, off, n, f, 0; case is ignored
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
	Aliases  []string // other names of this field

	// Replaces lists settings of Dapr's component type that this field replaces. If a component uses such a setting,
	// Check reports that the setting is unknown and suggests this field.
	Replaces []string

	// Secret fields are never shown. A secret value in the file, instead of a reference, causes a warning.
	Secret bool
	// Security fields switch on a protection. A misspelt name of such a field is an error, because a warning could be
	// overlooked and the protection would stay off.
	Security bool
	// Reference fields must come from a reference: a value in the file, or an empty value, is an error.
	Reference bool
	// Quoted fields must be YAML strings: other readers of the file refuse a number or boolean without quotes.
	Quoted bool
	// Refused, if not empty, is the reason why this known name cannot be used.
	Refused string
	// Rest makes the component accept every name that no other field declares. A Field with Rest must leave all its
	// other members empty. Values.Properties returns the values.
	Rest bool
	// Check returns an error if the component does not allow the text, although Kind does; nil = no check. An error
	// that is not a *fault.Error continues a sentence about the value, such as "is not a port".
	Check func(text string) error
}

// ParseSize parses a number of bytes: decimal digits and an optional unit. These are the units:
//
//	B            bytes
//	k, M, G      powers of 1000; upper or lower case
//	Ki, Mi, Gi   powers of 1024; the first letter in upper or lower case
//
// Every unit except B may be followed by a B. So "4Mi", "4MiB" and "4194304" are equal.
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

// ParseBool parses a value of kind Bool, for example "true", "no" or "1". It ignores case. The error text is the end of
// a sentence about the value: "is neither true nor false".
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
	given  bool  // the file has the field
}

// parse parses text as a value of the field's Kind. The error text is the end of a sentence about the value, such as
// "is not a whole number". It does not quote the value, which may be secret.
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
