package loader

import (
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// join combines errors into one error, which has the code of the first error and all messages, one per line. It returns
// nil if errs is empty.
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
		whole: &fault.Error{Code: fault.CodeOf(errs[0]), Op: op, Msg: strings.Join(texts, "\n"),
			Key: fault.KeyOf(errs[0])},
		parts: errs,
	}
}

// Each splits an error of this package into one error for each problem.
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

// parts splits a joined error into the errors that it consists of. For any other error, it returns a slice with only
// this error. For nil, it returns nil.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	if j, ok := err.(*joined); ok { //nolint:errorlint // only what join itself returned
		return j.parts
	}
	return []error{err}
}

// joined is an error made by join. The field whole has the code of the first error, and a message that contains the
// messages of all parts.
type joined struct {
	whole *fault.Error
	parts []error
}

// Error returns the texts of all joined errors.
func (j *joined) Error() string { return j.whole.Text() }

// Unwrap returns the fault with the joined text, followed by the errors that were joined.
func (j *joined) Unwrap() []error { return append([]error{j.whole}, j.parts...) }

// joinClose adds the error of a cleanup, which may be nil, to the error of a failed start. The result has the code of
// the failed start.
func joinClose(err, closing error) error {
	if closing == nil {
		return err
	}
	return join("loader.Open", []error{err, closing})
}

// hide replaces the hidden values in the message of err with "***". The new error has the same code, but does not wrap
// err, because a caller could unwrap it and read the values. If the message has no hidden value, hide returns err
// itself.
func hide(err error, hidden []string) error {
	if shown := err.Error(); component.Hide(shown, hidden) == shown {
		return err
	}
	return fault.New(fault.CodeOf(err), "", component.Hide(fault.Text(err), hidden))
}
