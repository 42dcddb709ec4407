package api

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// operation is a kind of request to a store.
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

// row describes the public errors of one operation.
type row struct {
	code     string // code of failures without a specific code
	conflict Kind   // kind of conflicts; for transactions Failed, as clients expect
	writes   bool
	sentence string // begins the message; "*" stands for the key
}

// row returns the description of the public errors of an operation.
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

// verdict is the result of mapping the fault code of a store error to a public error. If code is empty, the public
// error has the code of the failed operation.
type verdict struct {
	kind   Kind
	code   string
	reason string
}

func (r row) verdict(code fault.Code) verdict {
	switch code {
	case fault.Conflict:
		return verdict{kind: r.conflict, reason: ReasonConflict}
	case fault.LockLost:
		if r.conflict == Failed {
			return verdict{kind: Failed, reason: ReasonLockLost}
		}
		return verdict{kind: LockLost, reason: ReasonLockLost}
	case fault.DeliverySettled:
		return verdict{kind: Conflict, reason: ReasonSettled}
	case fault.ActorMoved:
		return verdict{kind: ActorMoved, reason: ReasonActorMoved}
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
	case fault.FormatBlocked:
		return verdict{kind: Unavailable, reason: ReasonFormatBlocked}
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

// StoreFailure converts the error of a component to the kind and the reason of a public error. The reason is a value
// for Details.Reason.
func StoreFailure(err error) (kind Kind, reason string) {
	v := row{conflict: Failed}.verdict(fault.CodeOf(err))
	return v.kind, v.reason
}

// codeOf returns the fault code of a store error. If the context of a write has ended, codeOf returns
// fault.Indeterminate, because the store may have executed the write.
func (r row) codeOf(err error) fault.Code {
	code := fault.CodeOf(err)
	if _, ok := fault.As(err); !ok && r.writes && code == fault.Timeout {
		return fault.Indeterminate
	}
	return code
}

// failed returns the public error for a failed store operation. key is the application's key, or empty. The message
// contains text. If text is empty, the message contains the error text of the store.
func (o operation) failed(err error, store, key, text string) *Error {
	r := o.row()
	code := r.codeOf(err)
	v := r.verdict(code)
	if v.reason == ReasonNoQuorum && state.IsOutside(err) {
		v.reason = ReasonUnavailable
	}
	text = cmp.Or(text, StoreText(err))
	if code == fault.Indeterminate && r.writes {
		text += "; it may have been applied"
	}
	return &Error{
		Kind:    v.kind,
		Code:    cmp.Or(v.code, r.code),
		Message: strings.Replace(r.sentence, "*", Shorten(key), 1) + store + ": " + text,
		Details: Details{Reason: v.reason, Store: store, Metadata: Attributes("store", store, "key", key)},
		Cause:   err,
	}
}

// StoreText returns the text of a store's error for a message to clients. If err is a context error and not a
// *fault.Error, the text explains the cause in more detail.
func StoreText(err error) string {
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

// conflictText returns the message for a write whose ETag or first-write condition did not hold. key is the
// application's key. Clients search for the first words of the message, so these words must not change.
func conflictText(store, key, etag string) string {
	text := "possible etag mismatch. error from state store " + store + ": key " + strconv.Quote(Shorten(key))
	if etag == "" {
		return text + " exists already and the write is first-write"
	}
	return text + " has another etag than the one given, or none"
}

// malformed returns the error of an invalid request.
func malformed(text string) *Error {
	return &Error{Kind: Malformed, Code: CodeMalformed, Message: text}
}

// MalformedRequest returns the error of a request that the HTTP or gRPC server could not decode.
func MalformedRequest(text string) error { return malformed(text) }

// BodyUnreadable returns the error of a request whose body could not be read to its end. text is the message.
func BodyUnreadable(text string) error {
	return &Error{Kind: Malformed, Code: CodeBodyRead, Message: text}
}

// invalid returns the public error for an invalid option, invalid metadata or an invalid key. The message begins with
// prefix, which names the item of the request, for example "item 3: ". prefix may be empty.
func invalid(prefix string, err error) *Error {
	return &Error{Kind: Malformed, Code: CodeMalformed, Message: prefix + fault.Text(err), Cause: err}
}

// Exceeded returns the error for a count above its limit. The message consists of a text such as "too many keys", the
// count and the limit.
func Exceeded(what string, count, limit int) *Error {
	e := malformed(what + ": " + strconv.Itoa(count) + "; the limit is " + strconv.Itoa(limit))
	e.Details = Details{
		Reason:   ReasonTooLarge,
		Metadata: Attributes("limit", strconv.Itoa(limit), "given", strconv.Itoa(count)),
	}
	return e
}

// BodyTooLarge returns the error of a body above limit bytes.
func BodyTooLarge(limit int64) error {
	n := strconv.FormatInt(limit, 10)
	e := malformed("the body is larger than the limit of " + n + " bytes (raise --max-body-size, or send less at once)")
	e.Details = Details{Reason: ReasonTooLarge, Metadata: Attributes("limit", n)}
	return e
}

// InvalidOption returns the public error for an invalid option. The message begins with prefix, which names the item
// with the option, for example "item 3: ". prefix is empty if the option belongs to the whole request.
func InvalidOption(prefix string, err error) error { return invalid(prefix, err) }

func illegalKey(store, field, prefix string, err error) *Error {
	text := fault.Text(err)
	e := &Error{Kind: Malformed, Code: CodeMalformed, Message: prefix + text, Cause: err}
	e.Details = Details{
		Reason:     reasonIllegalKey,
		Metadata:   Attributes("key", fault.KeyOf(err)),
		Store:      store,
		Violations: []Violation{{Field: field, Description: text}},
	}
	return e
}

func storesNotConfigured(app App, store string) *Error {
	return &Error{
		Kind: Missing,
		Code: CodeStoreNotConfigured,
		Message: "state store " + ShortenName(store) +
			" is not configured: no state store is loaded (add a component of type state.raft)",
		Details: Details{Reason: reasonNotConfigured, Metadata: Attributes("appID", app.ID), Store: store},
	}
}

func storeNotFound(app App, store string) *Error {
	return &Error{
		Kind:    Missing,
		Code:    CodeStoreNotFound,
		Message: "state store " + ShortenName(store) + " is not found",
		Details: Details{Reason: reasonNotFound, Metadata: Attributes("appID", app.ID), Store: store},
	}
}

// storesStarting returns the error for a store that cannot be found because components are still being loaded. If store
// is empty, the error is about the actor state store.
func storesStarting(store string) *Error {
	what := "the store of actor state"
	if store != "" {
		what = "state store " + ShortenName(store)
	}
	return &Error{
		Kind:    Unavailable,
		Code:    CodeStoreStarting,
		Message: what + " is not open yet: components are being loaded (wait for /v1.0/healthz/outbound)",
		Details: Details{Reason: ReasonStarting, Store: store},
	}
}

func transactionsNotSupported(store string) *Error {
	return &Error{
		Kind:    Unsupported,
		Code:    CodeStoreNotSupported,
		Message: "state store " + store + " doesn't support transactions",
		Details: Details{Reason: reasonNoTransaction, Metadata: Attributes("store", store), Store: store},
	}
}

func listingNotSupported(store string) *Error {
	return &Error{
		Kind:    Unsupported,
		Code:    CodeStoreNotSupported,
		Message: "state store " + store + " doesn't support listing keys",
		Details: Details{Reason: ReasonUnsupported, Metadata: Attributes("store", store), Store: store},
	}
}

func tooManyOperations(store string, given, limit int) *Error {
	e := Exceeded("transaction in state store "+store+" has too many operations", given, limit)
	e.Code = CodeTooManyOperations
	e.Details = Details{
		Reason:   reasonTooMany,
		Metadata: Attributes("currentOpsTransaction", strconv.Itoa(given), "maxOpsPerTransaction", strconv.Itoa(limit)),
		Store:    store,
	}
	return e
}

func unknownOperation(code, where, operation string) *Error {
	e := malformed(where + "operation type " + ShortenName(operation) + " not supported (use upsert or delete)")
	e.Code = code
	if code == CodeActorStateSave {
		e.Kind = Failed // as clients of the actor API expect
	}
	return e
}

func noActorStore() *Error {
	return &Error{
		Kind: Unsupported,
		Code: CodeActorRuntimeNotFound,
		Message: `no state store carries actor state ` +
			`(set metadata actorStateStore: "true" in one that supports transactions)`,
	}
}

// MethodNotAllowed returns the error for a request with an HTTP verb that the path does not support. method is this
// verb, and allowed lists the supported verbs for the message.
func MethodNotAllowed(method, allowed string) error {
	return &Error{Kind: Method, Code: CodeMethodNotAllowed, Message: Shorten(method) + " is not allowed here; use " +
		allowed}
}

// TokenInvalid returns the error of a request without a valid API token.
func TokenInvalid() error {
	return &Error{
		Kind:    Unauthenticated,
		Code:    CodeUnauthenticated,
		Message: "invalid api token (send the token in the header dapr-api-token)",
	}
}

// Forbidden returns the error of a request that a rule of the listener refuses. text is the message.
func Forbidden(text string) error {
	return &Error{Kind: Denied, Code: CodePermissionDenied, Message: text}
}

// Panicked returns the error of a request whose handler panicked.
func Panicked() error {
	return &Error{
		Kind:    Failed,
		Code:    CodeInternal,
		Message: "an internal error ended this request; the node's log has the details",
		Details: Details{Reason: ReasonInternal},
	}
}

// Overloaded returns the public error for a request that the node refused because of overload. No part of the request
// was executed. err is the reason.
func Overloaded(err error) error {
	return &Error{
		Kind:    Unavailable,
		Code:    CodeOverloaded,
		Message: fault.Text(err),
		Details: Details{Reason: ReasonOverloaded},
		Cause:   err,
	}
}

// AnswerOverloaded returns the public error for a request whose answer was dropped because of overload. The request
// itself was executed, so the message contains no hint to repeat it. err is the reason.
func AnswerOverloaded(err error) error {
	text := fault.Text(err)
	if e, ok := fault.As(err); ok {
		bare := *e
		bare.Hint = "" // the hint says to retry, and a retry would execute the request again
		text = bare.Text()
	}
	return &Error{
		Kind:    Indeterminate,
		Code:    CodeOverloaded,
		Message: "the request was executed, but its answer was dropped: " + text,
		Details: Details{Reason: ReasonIndeterminate},
		Cause:   err,
	}
}

func notReady(code, text string) *Error {
	return &Error{Kind: NotReady, Code: code, Message: text}
}

// Attributes returns attributes from alternating names and values. For example, Attributes("store", "orders", "key",
// "k1") returns two attributes. Attributes with an empty value are omitted.
func Attributes(pairs ...string) []Attribute {
	out := make([]Attribute, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, Attribute{Name: pairs[i], Value: pairs[i+1]})
		}
	}
	return out
}

// ShortenName is like Shorten, but returns a pair of quotes if s is empty.
func ShortenName(s string) string {
	if s == "" {
		return `""`
	}
	return Shorten(s)
}

// Shorten returns s, cut to at most maxShown bytes, for use in a message. Use it for every text that comes from a
// caller.
func Shorten(s string) string { return fault.Shorten(s, maxShown) }

// maxShown bounds a caller's text in a message, in bytes.
const maxShown = 131
