package loader

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// join makes one error of several: with the code of the first and the texts of all, a
// line each. It returns nil for none.
func join(op string, errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = fault.Text(err)
	}
	return &joined{
		whole: &fault.Error{Code: fault.CodeOf(errs[0]), Op: op, Msg: strings.Join(texts, "\n"), Key: fault.KeyOf(errs[0])},
		parts: errs,
	}
}

// Each takes an error of this package apart into one error for each thing that is wrong.
func Each(err error) []error {
	var out []error
	for _, part := range parts(err) {
		if _, ok := part.(*joined); ok { //nolint:errorlint // only what join itself returned
			out = append(out, Each(part)...)
			continue
		}
		out = append(out, part)
	}
	return out
}

// parts takes apart what join made.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	if j, ok := err.(*joined); ok { //nolint:errorlint // only what join itself returned
		return j.parts
	}
	return []error{err}
}

// joined is a fault whose causes are already part of its message.
type joined struct {
	whole *fault.Error
	parts []error
}

// Error returns the texts of all.
func (j *joined) Error() string { return j.whole.Text() }

// Unwrap lets every cause be found, behind the fault that words them all.
func (j *joined) Unwrap() []error { return append([]error{j.whole}, j.parts...) }

// joinClose keeps the cause of a failed start in front: what closing had to say as well
// is a consequence.
func joinClose(err, closing error) error {
	if closing == nil {
		return err
	}
	return join("loader.Open", []error{err, closing})
}

// hide returns err, or if its text shows one of the hidden values an error without them.
// That one has no cause: the cause would still show it.
func hide(err error, hidden []string) error {
	all := forms(hidden)
	shown := err.Error()
	if !slices.ContainsFunc(all, func(form string) bool { return strings.Contains(shown, form) }) {
		return err
	}
	clean := fault.Text(err)
	for _, form := range all {
		clean = strings.ReplaceAll(clean, form, "***")
	}
	return fault.New(fault.CodeOf(err), "", clean)
}

// forms lists how a value may appear in a message, the longest first so that no rest of
// a longer one is left standing.
func forms(hidden []string) []string {
	var out []string
	for _, value := range hidden {
		quoted := strconv.Quote(value)
		out = append(out, value, quoted[1:len(quoted)-1], url.QueryEscape(value), url.PathEscape(value))
	}
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(out)
}
