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

// parts returns the errors from which join made err. If err is not from join, parts returns a slice with only err. If
// err is nil, parts returns nil.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	if j, ok := err.(*joined); ok { //nolint:errorlint // only what join itself returned
		return j.parts
	}
	return []error{err}
}

// joined is an error made by join. The message of whole contains the messages of all parts.
type joined struct {
	whole *fault.Error
	parts []error
}

// Error returns the texts of all joined errors.
func (j *joined) Error() string { return j.whole.Text() }

// Unwrap returns the fault with the joined text, then every cause.
func (j *joined) Unwrap() []error { return append([]error{j.whole}, j.parts...) }

// joinClose combines err, the error of a failed start, with the error of closing, which may be nil. The result has the
// code of err.
func joinClose(err, closing error) error {
	if closing == nil {
		return err
	}
	return join("loader.Open", []error{err, closing})
}

// hide returns err with the hidden values in its message replaced by "***". If the message has no hidden value, it
// returns err itself. Otherwise it returns a new error with the same code. The new error does not wrap err, because a
// caller could unwrap it and read the values.
func hide(err error, hidden []string) error {
	if shown := err.Error(); component.Hide(shown, hidden) == shown {
		return err
	}
	return fault.New(fault.CodeOf(err), "", component.Hide(fault.Text(err), hidden))
}
