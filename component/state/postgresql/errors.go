package postgresql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/frames"
)

// kind is the kind of the statement that failed.
type kind uint8

const (
	reading kind = iota
	writing      // the outcome may be unknown
	unsent       // a write that was certainly not executed
)

// PostgreSQL's error codes for transactions that were rolled back because of other transactions.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
)

// duplicates returns PostgreSQL's error codes for rows, relations and other objects that exist already.
func duplicates() []string { return []string{"23505", "42710", "42P07"} }

// answers maps error codes of PostgreSQL to faults. A map key of two characters stands for all codes that begin with
// them. A statement that fails with one of these codes was not executed.
func answers() map[string]fault.Error {
	return map[string]fault.Error{
		"28": {Code: fault.Denied, Msg: "PostgreSQL refused the user or the password",
			Hint: "correct user and password in connectionString, and look at pg_hba.conf"},
		"42501": {Code: fault.Denied, Msg: "the user may not do this in PostgreSQL",
			Hint: "grant the rights that docs/components/state.postgresql.md lists"},
		"3D000": {Code: fault.Invalid, Msg: "the database does not exist",
			Hint: "create it, or correct connectionString"},
		"3F000": {Code: fault.Invalid, Msg: "the schema does not exist", Hint: "create it"},
		"42P01": {Code: fault.Unavailable, Msg: "the table does not exist",
			Hint: "restart the node: it creates the table at its start"},
		"42703": {Code: fault.Invalid, Msg: "the table has other columns than this version of the component",
			Hint: "set spec.version to the version that wrote the table, or use another table"},
		"25006": {Code: fault.Unavailable, Msg: "the PostgreSQL server is a standby or read-only",
			Hint: "give the address of the primary, or all addresses with target_session_attrs=read-write"},
		"22021": {Code: fault.Invalid, Msg: "a key or value has a character that the database cannot store"},
		"22P05": {Code: fault.Invalid, Msg: `a value has the character \u0000, which jsonb cannot store`,
			Hint: "use version v2 of the component"},
		"22":    {Code: fault.Invalid, Msg: "PostgreSQL cannot store a value"},
		"40001": {Code: fault.Overloaded, Msg: "too many transactions write the same keys"},
		"40P01": {Code: fault.Overloaded, Msg: "too many transactions write the same keys"},
		"53100": {Code: fault.ReadOnly, Msg: "the disk of PostgreSQL is full", Hint: "free space on its disk"},
		"53300": {Code: fault.Overloaded, Msg: "PostgreSQL has no connection left",
			Hint: "raise max_connections, or lower maxConns"},
		"53": {Code: fault.Overloaded, Msg: "PostgreSQL lacks resources", Hint: "look at its log"},
		"54": {Code: fault.TooLarge, Hint: "use shorter keys",
			Msg: "the key is too long for the index of PostgreSQL, which takes about 2700 bytes"},
		"55P03": {Code: fault.Timeout, Msg: "the row stayed locked", Hint: "look for a long transaction"},
		"57014": {Code: fault.Timeout, Msg: "PostgreSQL cancelled the statement", Hint: "look at statement_timeout"},
		"57P03": {Code: fault.Unavailable, Msg: "PostgreSQL is starting or stopping", Hint: "wait until it is ready"},
	}
}

// again reports whether a transaction was rolled back because of another transaction. Such a transaction can be
// repeated.
func again(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && (answer.Code == serializationFailure || answer.Code == deadlockDetected)
}

// failed converts an error of the client library to a fault. The code is fault.Indeterminate for a write that may
// have been executed.
func (s *Store) failed(op, key string, err error, doing kind) error {
	if _, ours := fault.As(err); ours {
		return err
	}
	e := &fault.Error{Op: op, Key: key, Err: err}
	var answer *pgconn.PgError
	var refused *pgconn.ConnectError
	var unreadable *frames.Error
	connecting := errors.As(err, &refused)
	switch {
	case errors.As(err, &answer) && s.answered(e, answer, doing, connecting):
	case s.gate.Closed() && (doing != writing || pgconn.SafeToRetry(err)):
		return outside.ErrClosed(op)
	case connecting:
		s.unreachable(e, err)
	case doing == writing && !pgconn.SafeToRetry(err):
		e.Code = fault.Indeterminate
		e.Msg = "the connection to PostgreSQL at " + s.settings.where() +
			" ended before the answer; the write may have been applied"
		e.Hint = "read the key before you write it again"
	case errors.As(err, &unreadable):
		return outside.Unreadable(op, key, "PostgreSQL at "+s.settings.where(), unreadable)
	case pgconn.Timeout(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		e.Code, e.Msg = fault.Timeout, "PostgreSQL at "+s.settings.where()+" did not answer in time"
		e.Hint = "look at its load and at maxConns"
	default:
		e.Code, e.Msg = fault.Unavailable, "the connection to PostgreSQL at "+s.settings.where()+" was lost"
	}
	return e
}

// answered sets the code, message and hint of e from an error response of PostgreSQL. It returns false if a write may
// have been executed in spite of the error, for example because the server was shutting down. Set connecting if the
// error occurred while the connection was opened, so that no write was sent.
func (s *Store) answered(e *fault.Error, answer *pgconn.PgError, doing kind, connecting bool) bool {
	all := answers()
	known, ok := all[answer.Code]
	class := answer.Code[:min(len(answer.Code), 2)]
	if !ok {
		known, ok = all[class]
	}
	switch {
	case ok:
		e.Code, e.Msg, e.Hint = known.Code, known.Msg, known.Hint
	case doing == writing && !connecting && unknownOutcome(answer.Code, class):
		return false
	case class == "57" || class == "08":
		e.Code, e.Msg = fault.Unavailable, "PostgreSQL ended the connection"
	default:
		e.Code, e.Msg = fault.Internal, "PostgreSQL answered with an error"
	}
	return true
}

// unknownOutcome reports whether a write that failed with the given error code may have been executed. class is the
// first two characters of the code. Some of the codes come from proxies, such as PgBouncer, that have lost their
// connection to PostgreSQL.
func unknownOutcome(code, class string) bool {
	return class == "57" || class == "08" || code == "58000" || code == "40003"
}

func (s *Store) unreachable(e *fault.Error, err error) {
	e.Code, e.Msg = fault.Unavailable, "no PostgreSQL can be reached at "+s.settings.where()
	e.Hint = "check connectionString, the network, and that PostgreSQL runs"
	var authority x509.UnknownAuthorityError
	var header tls.RecordHeaderError
	var host x509.HostnameError
	switch {
	case errors.As(err, &authority):
		e.Msg, e.Hint = "the certificate of PostgreSQL is not trusted", "give its authority with sslRootCert"
	case errors.As(err, &host):
		e.Msg = "the certificate of PostgreSQL at " + s.settings.where() + " is for another host"
		e.Hint = "connect with a name that is in it, or set sslmode=verify-ca"
	case errors.As(err, &header), strings.Contains(err.Error(), "refused TLS connection"):
		e.Msg, e.Hint = "the server does not speak TLS", "correct sslmode in connectionString"
	}
}

// CodeOf returns PostgreSQL's error code in an error of a Client. It returns "" for any other error.
func CodeOf(err error) string {
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		return answer.Code
	}
	return ""
}
