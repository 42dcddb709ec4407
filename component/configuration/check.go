package configuration

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/quorate/quorate/internal/fault"
)

// CheckKey returns an error if key is not a valid key. The code is fault.TooLarge if the key is too long, and otherwise
// fault.Invalid.
func CheckKey(key string) error {
	why := ""
	switch {
	case key == "":
		why = "is empty"
	case len(key) > MaxKey:
		return &fault.Error{Code: fault.TooLarge, Op: "configuration.CheckKey", Key: key,
			Msg: fmt.Sprintf("a key has %d bytes; the limit is %d", len(key), MaxKey)}
	case slices.ContainsFunc(strings.Split(key, "/"), isDotSegment):
		why = "has a segment . or .., and applications receive keys as paths"
	case !utf8.ValidString(key):
		why = "is not UTF-8"
	}
	for _, r := range key {
		if unicode.IsControl(r) {
			why = "has a control character"
		}
	}
	if why == "" {
		return nil
	}
	return &fault.Error{Code: fault.Invalid, Op: "configuration.CheckKey", Key: key,
		Msg: "the key " + strconv.Quote(key) + " " + why}
}

// isDotSegment reports whether s, a segment of a path, is "." or "..". It ignores parameters after a semicolon, as in
// "..;x", because some servers remove them.
func isDotSegment(s string) bool {
	bare, _, _ := strings.Cut(s, ";")
	return bare == "." || bare == ".."
}

// CheckWrite checks the changes of one write. It returns fault.TooLarge if a key, a value or the metadata are too
// large, and fault.Invalid if the changes are not valid for another reason. maxValue is the maximum size of a value in
// bytes.
func CheckWrite(changes []Change, maxValue int64) error {
	seen := make(map[string]bool, len(changes))
	for i := range changes {
		c := &changes[i]
		if err := CheckKey(c.Key); err != nil {
			return err
		}
		if seen[c.Key] {
			return invalid(c.Key, "the key "+strconv.Quote(c.Key)+" occurs twice in one write")
		}
		seen[c.Key] = true
		if c.Delete && c.Version == VersionAbsent {
			return invalid(c.Key, "the key "+strconv.Quote(c.Key)+
				" cannot be deleted on the condition that it does not exist")
		}
		if err := checkItem(&c.Item, maxValue); err != nil {
			return err
		}
	}
	return nil
}

func checkItem(i *Item, maxValue int64) error {
	switch {
	case int64(len(i.Value)) > maxValue:
		return &fault.Error{Code: fault.TooLarge, Op: "configuration.Write", Key: i.Key,
			Msg:  fmt.Sprintf("the value of %q has %d bytes; the limit is %d", i.Key, len(i.Value), maxValue),
			Hint: "raise " + MetadataMaxValueSize + " of the component, or keep large values in a state store"}
	case !utf8.ValidString(i.Value):
		return invalid(i.Key, "the value of "+strconv.Quote(i.Key)+" is not UTF-8")
	case len(i.Metadata) > MaxItemMetadata:
		return &fault.Error{Code: fault.TooLarge, Op: "configuration.Write", Key: i.Key,
			Msg: fmt.Sprintf("%q has %d pairs of metadata; the limit is %d", i.Key, len(i.Metadata), MaxItemMetadata)}
	}
	for name, value := range i.Metadata {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return invalid(i.Key, "the metadata of "+strconv.Quote(i.Key)+" is not UTF-8")
		}
		if int64(len(name)+len(value)) > maxValue {
			return &fault.Error{Code: fault.TooLarge, Op: "configuration.Write", Key: i.Key,
				Msg: fmt.Sprintf("the metadata of %q is larger than %d bytes", i.Key, maxValue)}
		}
	}
	return nil
}

func invalid(key, text string) error {
	return &fault.Error{Code: fault.Invalid, Op: "configuration.Write", Key: key, Msg: text}
}
