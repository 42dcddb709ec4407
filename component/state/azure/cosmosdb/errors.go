package cosmosdb

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
)

// kind is the kind of the request that failed.
type kind uint8

const (
	reading kind = iota
	writing      // the outcome may be unknown
)

// statusRetryWith is the HTTP status of a write that was not executed, because a concurrent write interfered.
const statusRetryWith = 449

// again calls attempt, and repeats the call after status 429 (throttled) or 449 (concurrent write). It returns the
// error of the last call. Repeating a request is safe, because these statuses mean that Cosmos DB has not executed it.
// Before each further call, again waits for the time that Cosmos DB requests. It returns early if ctx would end before
// the next call.
func (s *Store) again(ctx context.Context, attempt func() error) error {
	for {
		err := attempt()
		code := status(err)
		if code != http.StatusTooManyRequests && code != statusRetryWith {
			return err
		}
		pause := pauseOf(err)
		if until, ok := ctx.Deadline(); ok && time.Until(until) < pause {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// header returns a header of the answer that err contains, or "" if err contains no answer.
func header(err error, name string) string {
	var answer *azcore.ResponseError
	if errors.As(err, &answer) && answer.RawResponse != nil {
		return answer.RawResponse.Header.Get(name)
	}
	return ""
}

// pauseOf returns the pause that Cosmos DB requests in an answer, but at least 1 ms. If the answer requests no
// pause, pauseOf returns 100 ms.
func pauseOf(err error) time.Duration {
	ms, e := strconv.ParseFloat(header(err, "x-ms-retry-after-ms"), 64)
	if e != nil || ms < 0 {
		ms = 100
	}
	return max(time.Duration(ms*float64(time.Millisecond)), time.Millisecond)
}

// lostContainer reports whether an error with status 404 means that the container does not exist. If the result is
// false, the container exists and only the item is missing.
func lostContainer(err error) bool {
	const ownerNotFound = "1003"
	return header(err, "x-ms-substatus") == ownerNotFound
}

// failed converts an error of the client library to a fault. The code is fault.Indeterminate for a write that may
// have been executed.
func (s *Store) failed(ctx context.Context, op, key string, err error, doing kind) error {
	if _, ours := fault.As(err); ours {
		return err
	}
	e := &fault.Error{Op: op, Key: key, Err: err}
	var refused *azidentity.AuthenticationFailedError
	code := status(err)
	switch {
	case errors.As(err, &refused):
		return fault.Wrap(entra.Failure(ctx, "Entra ID", err), op, "authenticating to Cosmos DB")
	case code != 0 && answered(e, code, doing):
	case s.gate.Closed():
		return outside.ErrClosed(op)
	case doing == writing && mayHaveRun(err):
		e.Code, e.Msg = fault.Indeterminate, "Cosmos DB at "+s.settings.where()+
			" did not answer; the write may have been applied"
		e.Hint = "read the key before you write it again"
	default:
		s.unanswered(ctx, e, err)
	}
	return e
}

// answered sets code, message and hint of e according to an HTTP status. It returns false if the status does not
// show whether a write was executed.
func answered(e *fault.Error, code int, doing kind) bool {
	switch {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		e.Code, e.Msg = fault.Denied, "Cosmos DB refused the credentials"
		e.Hint = "correct masterKey, or give the identity the role Cosmos DB Built-in Data Contributor"
	case code == http.StatusNotFound:
		e.Code, e.Msg = fault.Unavailable, "the container of Cosmos DB does not exist"
		e.Hint = "create it with the partition key /partitionKey"
	case code == http.StatusRequestEntityTooLarge:
		e.Code, e.Msg, e.Hint = fault.TooLarge, "the request is larger than Cosmos DB allows, which is 2 MB",
			"split the value or the transaction"
	case code == http.StatusTooManyRequests, code == statusRetryWith:
		e.Code, e.Msg = fault.Overloaded, "Cosmos DB throttles requests"
		e.Hint = "raise the throughput of the container, or write less"
	case code == http.StatusRequestTimeout, code >= http.StatusInternalServerError:
		if doing == writing {
			return false
		}
		e.Code, e.Msg = fault.Unavailable, "Cosmos DB answered "+strconv.Itoa(code)
	default:
		e.Code, e.Msg = fault.Internal, "Cosmos DB answered "+strconv.Itoa(code)
	}
	return true
}

// mayHaveRun reports whether a request without an answer may have reached Cosmos DB.
func mayHaveRun(err error) bool {
	var dial *net.OpError
	var authority x509.UnknownAuthorityError
	return !(errors.As(err, &dial) && dial.Op == "dial") && !errors.As(err, &authority)
}

func (s *Store) unanswered(ctx context.Context, e *fault.Error, err error) {
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &authority):
		e.Code, e.Msg = fault.Unavailable, "the certificate of Cosmos DB is not trusted"
		e.Hint = "check url, and the certificate authorities of the system"
	case ctx.Err() != nil && mayHaveRun(err):
		e.Code, e.Msg = fault.Timeout, "Cosmos DB at "+s.settings.where()+" did not answer in time"
		e.Hint = "look at the throughput of the container"
	default:
		e.Code, e.Msg = fault.Unavailable, "Cosmos DB cannot be reached at "+s.settings.where()
		e.Hint = "check url and the network"
	}
}
