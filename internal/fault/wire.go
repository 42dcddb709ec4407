package fault

import (
	"encoding/json"
	"errors"
)

// wire is the JSON form in which an Error is sent between nodes. A reader ignores unknown fields, so a newer version
// may add fields.
type wire struct {
	Code Code   `json:"code"`
	Op   string `json:"op,omitempty"`
	Msg  string `json:"msg,omitempty"`
	Hint string `json:"hint,omitempty"`
	Key  string `json:"key,omitempty"`
	Err  string `json:"err,omitempty"`
}

// Marshal encodes err for another node. It keeps the code, operation, message, hint and key, and the text of the
// cause. It returns nil if err is nil.
func Marshal(err error) []byte {
	if err == nil {
		return nil
	}
	w := wire{Code: CodeOf(err), Key: KeyOf(err)}
	if e, ok := err.(*Error); ok { //nolint:errorlint // only the outermost value has fields of its own
		w.Op, w.Msg, w.Hint, w.Err = e.Op, e.Msg, e.Hint, Text(e.Err)
	} else {
		w.Msg = Text(err)
	}
	b, _ := json.Marshal(w) // strings only: cannot fail
	return b
}

// Unmarshal decodes the result of Marshal. For empty input it returns nil. If the input is malformed or has no code,
// the returned error has the code Internal.
func Unmarshal(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return &Error{Code: Internal, Op: "fault.Unmarshal", Msg: "a peer sent an unreadable error", Err: err}
	}
	if w.Code == "" {
		w.Code = Internal
	}
	e := &Error{Code: w.Code, Op: w.Op, Msg: w.Msg, Hint: w.Hint, Key: w.Key}
	if w.Err != "" {
		e.Err = errors.New(w.Err)
	}
	return e
}
