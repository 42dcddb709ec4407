package sqlserver

import (
	"context"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net"
	"slices"
	"strings"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/frames"
)

// kind is the kind of the call that failed.
type kind uint8

const (
	reading kind = iota
	writing      // the outcome may be unknown
	unsent       // a write that was certainly not executed
)

// The error numbers of SQL Server for a conflict between transactions. After such an error, the call is repeated.
const (
	deadlockVictim   = 1205
	snapshotConflict = 3960
)

// answers maps error numbers of SQL Server to faults. If a batch fails with one of these errors, SQL Server has rolled
// it back.
func answers() map[int32]fault.Error {
	out := map[int32]fault.Error{
		40615: {Code: fault.Denied, Msg: "the firewall of Azure SQL refuses the address of this node",
			Hint: "allow it in the firewall of the server"},
		208: {Code: fault.Unavailable, Msg: "the table does not exist",
			Hint: "restart the node: it creates the table at its start"},
		207: {Code: fault.Invalid, Msg: "the table has other columns than this version of the component",
			Hint: "set spec.version to the version that wrote the table, or use another table"},
		334:  {Code: fault.Invalid, Msg: "the table has a trigger", Hint: "drop it, or use another table"},
		1222: {Code: fault.Timeout, Msg: "the row stayed locked", Hint: "look for a long transaction"},
		1946: {Code: fault.TooLarge, Msg: "the key is too long for the index of the table, which takes 900 bytes",
			Hint: "use shorter keys"},
		5074: {Code: fault.Invalid, Msg: "the table cannot be changed", Hint: "use another table"},
		9420: {Code: fault.Invalid, Msg: "SQL Server cannot store a value"},
		13609: {Code: fault.Invalid, Msg: "the value is not a JSON object, so its indexedProperties cannot be computed",
			Hint: "save JSON objects, use version v2 for bytes, or drop the computed columns"},
		40544: {Code: fault.ReadOnly, Msg: "the database has reached its size quota",
			Hint: "delete data, or raise the quota in Azure"},
	}
	group := func(e fault.Error, numbers ...int32) {
		for _, n := range numbers {
			out[n] = e
		}
	}
	group(fault.Error{Code: fault.Denied, Msg: "SQL Server refused the user or the password",
		Hint: "correct user id and password in connectionString"},
		18452, 18456, 18461, 18470, 18486, 18487, 18488, 40532)
	group(fault.Error{Code: fault.Denied, Msg: "the user may not do this in SQL Server",
		Hint: "grant the rights that docs/components/state.sqlserver.md lists"}, 229, 230, 262, 297, 300, 916, 1088,
		2760, 4701, 15151, 15247)
	group(fault.Error{Code: fault.Unavailable,
		Msg:  "the database cannot be opened: it does not exist, is starting, or the user has no access to it",
		Hint: "create it or correct connectionString; without a database in it, the node creates one"}, 4060, 4064, 911,
		927, 922)
	group(fault.Error{Code: fault.Unavailable, Msg: "the SQL Server at this address is not the primary",
		Hint: "give the address of the listener; it works again after the failover"},
		976, 978, 982, 983, 3906, 3908, 40613)
	group(fault.Error{Code: fault.Unavailable, Msg: "SQL Server is starting or stopping",
		Hint: "wait until it is ready"}, 17142, 17187, 18401)
	group(fault.Error{Code: fault.Overloaded, Msg: "too many transactions write the same keys"}, deadlockVictim,
		snapshotConflict, 3961)
	group(fault.Error{Code: fault.Overloaded, Msg: "Azure SQL throttles requests",
		Hint: "send fewer requests, or raise the service tier"}, 10928, 10929, 40501, 49918, 49919, 49920)
	group(fault.Error{Code: fault.Overloaded, Msg: "SQL Server lacks resources", Hint: "look at its error log"}, 701,
		802, 8645, 8651, 17189, 17300, 17809)
	group(fault.Error{Code: fault.ReadOnly, Msg: "the disk or the log of SQL Server is full",
		Hint: "free space, or let its files grow"}, 1101, 1105, 9002, 3257)
	group(fault.Error{Code: fault.Invalid, Msg: "the table takes another key that exists for the same one",
		Hint: "use a table that Quorate creates, which compares keys exactly"}, 2601, 2627)
	group(fault.Error{Code: fault.TooLarge, Msg: "the key is longer than its column", Hint: "use shorter keys"}, 2628,
		8152)
	group(fault.Error{Code: fault.Invalid, Msg: "an indexed property of the value does not have the type of its column",
		Hint: "correct the value or indexedProperties"}, 241, 242, 244, 245, 248, 8114, 8115, 8169, 13608)
	return out
}

// again reports whether a failed call can be repeated because it has certainly changed nothing. This is the case after
// a conflict with another transaction, or if the connection was broken before anything was sent.
func again(err error) bool {
	var answer mssql.Error
	return errors.Is(err, driver.ErrBadConn) ||
		errors.As(err, &answer) && (answer.Number == deadlockVictim || answer.Number == snapshotConflict)
}

// exists reports whether err means that an object could not be created because it already exists.
func exists(err error) bool {
	var answer mssql.Error
	return errors.As(err, &answer) && slices.Contains([]int32{1801, 1913, 2714, 2759, 15233}, answer.Number)
}

// failed converts an error of the client library to a fault. The code is fault.Indeterminate for a write that may
// have been executed.
func (s *Store) failed(op, key string, err error, doing kind) error {
	if _, ours := fault.As(err); ours {
		return err
	}
	e := &fault.Error{Op: op, Key: key, Err: err}
	var answer mssql.Error
	var unreadable *frames.Error
	switch {
	case errors.As(err, &answer) && s.answered(e, answer, err, doing):
	case s.gate.Closed() && doing != writing, errors.Is(err, sql.ErrConnDone):
		return outside.ErrClosed(op)
	case doing == writing && !errors.Is(err, driver.ErrBadConn):
		e.Code = fault.Indeterminate
		e.Msg = "SQL Server at " + s.settings.where() + " did not answer; the write may have been applied"
		e.Hint = "read the key before you write it again"
	case errors.As(err, &unreadable):
		return outside.Unreadable(op, key, "SQL Server at "+s.settings.where(), unreadable)
	default:
		s.unanswered(e, err)
	}
	return e
}

// severed reports whether SQL Server ended the connection with an error.
func severed(err error) bool {
	const fatal = 20 // from this severity on, SQL Server ends the connection
	var answer mssql.Error
	var aborted mssql.ServerError
	return errors.As(err, &aborted) || errors.As(err, &answer) && (answer.Class >= fatal ||
		slices.Contains([]int32{596, 6005, 40197, 40143, 40166, 40540}, answer.Number))
}

// answered sets the code, message and hint of e from an error that SQL Server has returned. If SQL Server ended the
// connection during a write, the write may have been committed. In this case, answered does not change e and returns
// false.
func (s *Store) answered(e *fault.Error, answer mssql.Error, err error, doing kind) bool {
	all := answers()
	known, ok := all[answer.Number]
	for _, one := range answer.All { // the first one is the cause
		if !ok {
			known, ok = all[one.Number]
		}
	}
	switch {
	case ok:
		e.Code, e.Msg, e.Hint = known.Code, known.Msg, known.Hint
	case severed(err) && doing == writing:
		return false
	case severed(err):
		e.Code, e.Msg = fault.Unavailable, "SQL Server ended the connection"
	case strings.HasPrefix(answer.Message, "login error"):
		e.Code, e.Msg = fault.Denied, "SQL Server refused the login"
		e.Hint = "correct connectionString"
	default:
		e.Code, e.Msg = fault.Internal, "SQL Server answered with an error"
	}
	return true
}

// unanswered sets the code, message and hint of e for a call that SQL Server did not answer. It must not be used for a
// write that may have been executed.
func (s *Store) unanswered(e *fault.Error, err error) {
	var dial *net.OpError
	var authority x509.UnknownAuthorityError
	var network net.Error
	e.Code = fault.Unavailable
	switch {
	case errors.As(err, &authority), strings.Contains(err.Error(), "x509:"):
		e.Msg = "the certificate of SQL Server is not trusted"
		e.Hint = "give its authority with certificate in connectionString, or correct the host name"
	case strings.Contains(err.Error(), "TLS Handshake failed"):
		e.Msg, e.Hint = "the TLS handshake with SQL Server failed", "correct encrypt in connectionString"
	case errors.As(err, &dial) && dial.Op == "dial", strings.Contains(err.Error(), "no instance matching"),
		strings.Contains(err.Error(), "lookup "):
		e.Msg = "no SQL Server can be reached at " + s.settings.where()
		e.Hint = "check connectionString, the network, and that SQL Server runs"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errors.As(err, &network) && network.Timeout():
		e.Code, e.Msg = fault.Timeout, "SQL Server at "+s.settings.where()+" did not answer in time"
		e.Hint = "look at its load, and for long transactions that lock the row"
	default:
		e.Msg = "the connection to SQL Server at " + s.settings.where() + " was lost"
	}
}
