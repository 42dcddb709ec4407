package mongodb

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/frames"
)

// kind is the kind of the command that failed.
type kind uint8

const (
	reading kind = iota
	writing      // the outcome may be unknown
	unsent       // a write that was certainly not executed
)

// answers maps error codes of MongoDB to faults. A command that fails with one of these codes was not executed.
func answers() map[int]fault.Error {
	denied := fault.Error{Code: fault.Denied, Msg: "MongoDB refused the user or the password",
		Hint: "correct username and password, and the authSource of the connection settings"}
	notPrimary := fault.Error{Code: fault.Unavailable, Msg: "the MongoDB server is not the primary",
		Hint: "wait for the election, and name the replica set in the connection settings"}
	tooLarge := fault.Error{Code: fault.TooLarge, Msg: "the document is larger than MongoDB allows",
		Hint: "a document can have 16 MiB; split the value"}
	busy := fault.Error{Code: fault.Overloaded, Msg: "too many transactions write the same keys"}
	return map[int]fault.Error{
		18: denied, 8000: denied,
		13: {Code: fault.Denied, Msg: "the user may not do this in MongoDB",
			Hint: "grant the role readWrite on the database"},
		10107: notPrimary, 13435: notPrimary, 10058: notPrimary, 13436: notPrimary,
		10334: tooLarge, 17280: tooLarge, 17419: tooLarge, 17420: tooLarge,
		112: busy, 251: busy, 24: busy,
		20: {Code: fault.Invalid, Msg: "MongoDB does not allow this operation", Hint: replicaSetHint},
		73: {Code: fault.Invalid, Msg: "the name of the database or collection is not valid",
			Hint: "correct databaseName and collectionName"},
		13297: {Code: fault.Invalid, Msg: "the database exists with another case of letters",
			Hint: "correct databaseName"},
		85: {Code: fault.Invalid, Msg: "the index of _ttl exists with other options",
			Hint: "drop the index _ttl_1; the node creates it again"},
		86: {Code: fault.Invalid, Msg: "another index has the name _ttl_1",
			Hint: "drop it; the node creates its own"},
		14031: {Code: fault.ReadOnly, Msg: "the disk of MongoDB is full", Hint: "free space on its disk"},
		146:   {Code: fault.Overloaded, Msg: "MongoDB lacks memory", Hint: "look at its log"},
	}
}

// failed converts an error of the client library to a fault. The code is fault.Indeterminate for a write that may
// have been executed.
func (s *Store) failed(op, key string, err error, doing kind) error {
	if _, ours := fault.As(err); ours {
		return err
	}
	e := &fault.Error{Op: op, Key: key, Err: err}
	switch {
	case s.gate.Closed() && !(doing == writing && mayHaveRun(err)) || errors.Is(err, mongo.ErrClientDisconnected):
		return outside.ErrClosed(op)
	case acknowledgedByTooFew(err):
		e.Code = fault.Indeterminate
		e.Msg = "too few servers of MongoDB acknowledged the write; the write may have been applied and may be lost"
		e.Hint = "read the key before you write it again, and look at the replica set"
	case s.answered(e, err):
	case doing == writing && mayHaveRun(err):
		return s.lost(op, key, err)
	default:
		s.unanswered(e, err)
	}
	return e
}

// lost returns the error of a write whose answer did not arrive.
func (s *Store) lost(op, key string, err error) error {
	return &fault.Error{Code: fault.Indeterminate, Op: op, Key: key, Err: err,
		Msg:  "MongoDB at " + s.settings.where() + " did not answer; the write may have been applied",
		Hint: "read the key before you write it again"}
}

// acknowledgedByTooFew reports whether a write was executed, but fewer servers acknowledged it than requested.
func acknowledgedByTooFew(err error) bool {
	var e mongo.WriteException
	var bulk mongo.BulkWriteException
	const writeConcernFailed = 64
	return errors.As(err, &e) && e.WriteConcernError != nil ||
		errors.As(err, &bulk) && bulk.WriteConcernError != nil ||
		slices.Contains(mongo.ErrorCodes(err), writeConcernFailed)
}

// answered sets the code, message and hint of e from an error response of MongoDB. It returns false if err is not such
// a response, or if the command may have been executed in spite of the error.
func (s *Store) answered(e *fault.Error, err error) bool {
	// The client library also gives this label to a handshake that it cancels because the store closes.
	if hasLabel(err, labelOverloaded) && !errors.Is(err, context.Canceled) {
		e.Code, e.Msg = fault.Overloaded, "MongoDB is overloaded"
		return true
	}
	all := answers()
	for _, code := range mongo.ErrorCodes(err) {
		if known, ok := all[code]; ok {
			e.Code, e.Msg, e.Hint = known.Code, known.Msg, known.Hint
			return true
		}
	}
	var answer mongo.ServerError
	if !errors.As(err, &answer) || mongo.IsNetworkError(err) || slices.ContainsFunc(interrupted(),
		answer.HasErrorCode) ||
		len(mongo.ErrorCodes(err)) == 0 {
		return false
	}
	e.Code, e.Msg = fault.Internal, "MongoDB answered with an error"
	return true
}

// interrupted returns the error codes of commands that MongoDB began and aborted, for example because of a time
// limit, a shutdown or an election. Such a command may have been executed.
func interrupted() []int { return []int{0, 50, 91, 189, 262, 11600, 11601, 11602, 6, 7, 89, 9001} }

// mayHaveRun reports whether a command without an answer may have reached MongoDB.
func mayHaveRun(err error) bool {
	var selection topology.ServerSelectionError
	var queue topology.WaitQueueTimeoutError
	var pool driver.RetryablePoolError
	var dial *net.OpError
	switch {
	case errors.As(err, &selection), errors.As(err, &queue), errors.Is(err, driver.ErrDeadlineWouldBeExceeded):
		return false
	case errors.As(err, &pool) && pool.Retryable(), errors.As(err, &dial) && dial.Op == "dial":
		return false
	}
	return true
}

// unanswered sets the code, message and hint of e for a command without an answer. It must not be used for a write that
// may have been executed.
func (s *Store) unanswered(e *fault.Error, err error) {
	var selection topology.ServerSelectionError
	var authority x509.UnknownAuthorityError
	var queue topology.WaitQueueTimeoutError
	var unreadable *frames.Error
	e.Code = fault.Unavailable
	switch {
	case errors.As(err, &unreadable):
		*e = *outside.Unreadable(e.Op, e.Key, "MongoDB at "+s.settings.where(), unreadable)
	case errors.As(err, &authority):
		e.Msg, e.Hint = "the certificate of MongoDB is not trusted", "give its authority with tlsCAFile in the "+
			"connection settings"
	case errors.As(err, &selection) && strings.Contains(err.Error(), "auth error"):
		e.Code, e.Msg = fault.Denied, answers()[18].Msg
		e.Hint = answers()[18].Hint
	case errors.As(err, &selection) && strings.Contains(err.Error(), "Type: RSSecondary"):
		e.Msg, e.Hint = "the replica set at "+s.settings.where()+" has no primary", answers()[10107].Hint
	case errors.As(err, &selection), !errors.As(err, &queue) && !mayHaveRun(err) && !mongo.IsTimeout(err):
		e.Msg = "no MongoDB can be reached at " + s.settings.where()
		e.Hint = "check the connection settings, the network, and that MongoDB runs"
	case mongo.IsTimeout(err), errors.Is(err, context.Canceled), errors.As(err, &queue):
		e.Code, e.Msg = fault.Timeout, "MongoDB at "+s.settings.where()+" did not answer in time"
		e.Hint = "look at its load, at maxPoolSize and at operationTimeout"
	default:
		e.Msg = "the connection to MongoDB at " + s.settings.where() + " was lost"
	}
}
