package api

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/internal/fault"
)

// operation is what was asked of a store.
type operation uint8

const (
	opGet operation = iota
	opBulkGet
	opList
	opSave
	opDelete
	opTransact
	opActorGet
	opActorTransact
)

// row says what the failures of one operation are called.
type row struct {
	code     string // of whatever has no code of its own
	conflict Kind   // a transaction reports a conflict as a plain failure: clients expect that
	writes   bool
	sentence string // begins the message; "*" stands for the key
}

// row is the table.
func (o operation) row() row {
	switch o {
	case opGet:
		return row{CodeStateGet, Failed, false, "fail to get * from state store "}
	case opBulkGet:
		return row{CodeStateBulkGet, Failed, false, "fail to get keys from state store "}
	case opList:
		return row{CodeStateList, Failed, false, "failed listing the keys of state store "}
	case opSave:
		return row{CodeStateSave, Conflict, true, "failed saving state in state store "}
	case opDelete:
		return row{CodeStateDelete, Conflict, true, "failed deleting state with key * from state store "}
	case opTransact:
		return row{CodeStateTransaction, Failed, true, "error while executing state transaction in state store "}
	case opActorGet:
		return row{CodeActorStateGet, Failed, false, "fail to get actor state * from state store "}
	case opActorTransact:
		return row{CodeActorStateSave, Failed, true, "failed saving actor state in state store "}
	default:
		return row{CodeInternal, Failed, false, "failed in state store "}
	}
}

// verdict is what a fault code becomes; an empty code means the operation's own.
type verdict struct {
	kind   Kind
	code   string
	reason string
}

func (r row) verdict(code fault.Code) verdict {
	switch code {
	case fault.Conflict:
		return verdict{kind: r.conflict, reason: ReasonConflict}
	case fault.Invalid:
		return verdict{kind: Malformed, code: CodeMalformed}
	case fault.TooLarge:
		return verdict{kind: Malformed, code: CodeMalformed, reason: ReasonTooLarge}
	case fault.Denied:
		return verdict{kind: Denied, code: CodePermissionDenied, reason: ReasonDenied}
	case fault.Unimplemented:
		return verdict{kind: Unsupported, code: CodeStoreNotSupported, reason: ReasonUnsupported}
	case fault.Unavailable, fault.NotLeader:
		return verdict{kind: Unavailable, reason: ReasonNoQuorum}
	case fault.ReadOnly:
		return verdict{kind: Unavailable, reason: ReasonReadOnly}
	case fault.Overloaded:
		return verdict{kind: Unavailable, reason: ReasonOverloaded}
	case fault.Timeout:
		return verdict{kind: Timeout, reason: ReasonTimeout}
	case fault.Indeterminate:
		return verdict{kind: Indeterminate, reason: ReasonIndeterminate}
	case fault.Corrupt:
		return verdict{kind: Failed, reason: ReasonCorrupt}
	default:
		return verdict{kind: Failed, reason: ReasonInternal}
	}
}

// codeOf does not believe that a write was surely not done only because the store gave
// up with a bare context error.
func (r row) codeOf(err error) fault.Code {
	code := fault.CodeOf(err)
	if _, ok := fault.As(err); !ok && r.writes && code == fault.Timeout {
		return fault.Indeterminate
	}
	return code
}

// failed makes the public error of a store's failure. key is the application's own key
// the failure is about, or empty; text replaces what the store said, unless it is empty.
func (o operation) failed(err error, store, key, text string) *Error {
	r := o.row()
	code := r.codeOf(err)
	v := r.verdict(code)
	text = cmp.Or(text, storeText(err))
	if code == fault.Indeterminate && r.writes {
		text += "; it may have been applied"
	}
	return &Error{
		Kind:    v.kind,
		Code:    cmp.Or(v.code, r.code),
		Message: strings.Replace(r.sentence, "*", show(key), 1) + store + ": " + text,
		Details: Details{Reason: v.reason, Store: store, Metadata: attributes("store", store, "key", key)},
		cause:   err,
	}
}

// storeText is what the store said, but for a bare context error, which names nothing.
func storeText(err error) string {
	if _, ok := fault.As(err); ok {
		return fault.Text(err)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "the store did not answer before the request's time was over (--request-timeout)"
	case errors.Is(err, context.Canceled):
		return "the caller went away before the store answered"
	default:
		return fault.Text(err)
	}
}

// conflictText says in the application's own words which condition did not hold. The
// first words are what clients look for.
func conflictText(store, key, etag string) string {
	text := "possible etag mismatch. error from state store " + store + ": key " + strconv.Quote(show(key))
	if etag == "" {
		return text + " exists already and the write is first-write"
	}
	return text + " has another etag than the one given, or none"
}

// malformed makes the error of a request that is wrong in itself.
func malformed(text string) *Error {
	return &Error{Kind: Malformed, Code: CodeMalformed, Message: text}
}

// MalformedRequest is the error of a request that a face could not decode.
func MalformedRequest(text string) error { return malformed(text) }

// BodyUnreadable is the error of a request whose body did not arrive.
func BodyUnreadable(text string) error {
	return &Error{Kind: Malformed, Code: CodeBodyRead, Message: text}
}

// invalid makes the error of an option or of metadata that package state refused. where
// names the item, or is empty.
func invalid(where string, err error) *Error {
	return &Error{Kind: Malformed, Code: CodeMalformed, Message: where + fault.Text(err), cause: err}
}

// exceeded makes the error of a count above its limit.
func exceeded(what string, count, limit int) *Error {
	e := malformed(what + ": " + strconv.Itoa(count) + "; the limit is " + strconv.Itoa(limit))
	e.Details = Details{
		Reason:   ReasonTooLarge,
		Metadata: attributes("limit", strconv.Itoa(limit), "given", strconv.Itoa(count)),
	}
	return e
}

// BodyTooLarge is the error of a body above limit bytes.
func BodyTooLarge(limit int64) error {
	n := strconv.FormatInt(limit, 10)
	e := malformed("the body is larger than the limit of " + n + " bytes (raise --max-body-size, or send less at once)")
	e.Details = Details{Reason: ReasonTooLarge, Metadata: attributes("limit", n)}
	return e
}

// InvalidOption is the error of an option that package state refused. where names the
// item it belongs to, such as "item 3: ", or is empty.
func InvalidOption(where string, err error) error { return invalid(where, err) }

func illegalKey(store, field, where string, err error) *Error {
	text := fault.Text(err)
	e := &Error{Kind: Malformed, Code: CodeMalformed, Message: where + text, cause: err}
	e.Details = Details{
		Reason:     reasonIllegalKey,
		Metadata:   attributes("key", fault.KeyOf(err)),
		Store:      store,
		Violations: []Violation{{Field: field, Description: text}},
	}
	return e
}

func storesNotConfigured(app App, store string) *Error {
	return &Error{
		Kind:    Missing,
		Code:    CodeStoreNotConfigured,
		Message: "state store " + name(store) + " is not configured: no state store is loaded (add a component of type state.raft)",
		Details: Details{Reason: reasonNotConfigured, Metadata: attributes("appID", app.ID), Store: store},
	}
}

func storeNotFound(app App, store string) *Error {
	return &Error{
		Kind:    Missing,
		Code:    CodeStoreNotFound,
		Message: "state store " + name(store) + " is not found",
		Details: Details{Reason: reasonNotFound, Metadata: attributes("appID", app.ID), Store: store},
	}
}

// storesStarting is the error of a store that may yet come; an empty name means the one
// that carries actor state.
func storesStarting(store string) *Error {
	what := "the store of actor state"
	if store != "" {
		what = "state store " + name(store)
	}
	return &Error{
		Kind:    Unavailable,
		Code:    CodeStoreNotConfigured,
		Message: what + " is not open yet: components are being loaded (wait for /v1.0/healthz/outbound)",
		Details: Details{Reason: ReasonStarting, Store: store},
	}
}

func transactionsNotSupported(store string) *Error {
	return &Error{
		Kind:    Unsupported,
		Code:    CodeStoreNotSupported,
		Message: "state store " + store + " doesn't support transactions",
		Details: Details{Reason: reasonNoTransaction, Metadata: attributes("store", store), Store: store},
	}
}

func listingNotSupported(store string) *Error {
	return &Error{
		Kind:    Unsupported,
		Code:    CodeStoreNotSupported,
		Message: "state store " + store + " doesn't support listing keys",
		Details: Details{Reason: ReasonUnsupported, Metadata: attributes("store", store), Store: store},
	}
}

func tooManyOperations(store string, given, limit int) *Error {
	e := exceeded("transaction in state store "+store+" has too many operations", given, limit)
	e.Code = CodeTooManyOperations
	e.Details = Details{
		Reason:   reasonTooMany,
		Metadata: attributes("currentOpsTransaction", strconv.Itoa(given), "maxOpsPerTransaction", strconv.Itoa(limit)),
		Store:    store,
	}
	return e
}

func unknownOperation(code, where, operation string) *Error {
	e := malformed(where + "operation type " + name(operation) + " not supported (use upsert or delete)")
	e.Code = code
	if code == CodeActorStateSave {
		e.Kind = Failed // as clients of the actor API know it
	}
	return e
}

func noActorStore() *Error {
	return &Error{
		Kind:    Unsupported,
		Code:    CodeActorRuntimeNotFound,
		Message: `no state store carries actor state (set metadata actorStateStore: "true" in one that supports transactions)`,
	}
}

// PathNotFound is the error of a path that no endpoint has.
func PathNotFound(path string) error {
	return &Error{Kind: NotFound, Code: CodeNotFound, Message: "no endpoint has the path " + show(path)}
}

// MethodNotAllowed is the error of a verb that the path does not know; allowed lists
// those that it does.
func MethodNotAllowed(method, allowed string) error {
	return &Error{Kind: Method, Code: CodeMethodNotAllowed, Message: show(method) + " is not allowed here; use " + allowed}
}

// TokenInvalid is the error of a request without a valid API token.
func TokenInvalid() error {
	return &Error{
		Kind:    Unauthenticated,
		Code:    CodeUnauthenticated,
		Message: "invalid api token (send the token in the header dapr-api-token)",
	}
}

// Forbidden is the error of a request that a rule of the listener refuses.
func Forbidden(text string) error {
	return &Error{Kind: Denied, Code: CodePermissionDenied, Message: text}
}

// Panicked is the error of a request whose handling ended in a panic.
func Panicked() error {
	return &Error{
		Kind:    Failed,
		Code:    CodeInternal,
		Message: "an internal error ended this request; the node's log has the details",
		Details: Details{Reason: ReasonInternal},
	}
}

func notReady(code, text string) *Error {
	return &Error{Kind: NotReady, Code: code, Message: text}
}

// attributes pairs names with values, leaving out those that are empty.
func attributes(pairs ...string) []Attribute {
	out := make([]Attribute, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, Attribute{Name: pairs[i], Value: pairs[i+1]})
		}
	}
	return out
}

// name is show for what may be empty.
func name(s string) string {
	if s == "" {
		return `""`
	}
	return show(s)
}

// show bounds what a message repeats of a caller's text.
func show(s string) string {
	const limit = 128
	if len(s) <= limit {
		return s
	}
	end := limit
	for end > limit-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}
