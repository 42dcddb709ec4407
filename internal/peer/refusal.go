package peer

import (
	"errors"

	"github.com/quorate/quorate/internal/fault"
)

// Reason is why a connection was refused. The constants below are the complete list. Their numbers are sent in the
// answer to a hello, so they must never change.
type Reason uint8

// The reasons.
const (
	ReasonMalformed      Reason = 1 + iota // no preamble, or one that breaks the format
	ReasonVersion                          // another version of the peer protocol
	ReasonForeignCluster                   // caller and callee belong to different clusters
	ReasonOlderEpoch                       // the epoch of the caller is older: a rescue left the caller behind
	ReasonNewerEpoch                       // the epoch of the callee is older: a rescue left the callee behind
	ReasonWrongServer                      // another server than the requested one answers at the address
	ReasonOwnID                            // the caller claims to be the callee
	ReasonUnformed                         // caller or callee has no cluster yet
	ReasonUnknownGroup                     // the callee does not run that Raft group
	ReasonCertificate                      // the certificate does not belong to the server
	ReasonBusy                             // too many connections
	ReasonClosing                          // the callee is about to stop
	ReasonTimeout                          // the preamble did not arrive in time
	ReasonTLS                              // the TLS handshake failed
	ReasonCut                              // a test has cut the network
	ReasonChanged                          // cluster or epoch of one side has just changed
	ReasonPlain                            // one side is secured, the other is not
	ReasonAuthority                        // a certificate of another authority
	ReasonExpired                          // a certificate that has expired or is not valid yet
	reasons
)

// String returns the value of the metric label "reason".
func (r Reason) String() string {
	if r == 0 || r >= reasons {
		return "other"
	}
	return [reasons]string{"other", "malformed", "version", "foreign_cluster", "older_epoch", "newer_epoch",
		"wrong_server", "own_id",
		"unformed", "unknown_group", "certificate", "busy", "closing", "timeout", "tls", "cut", "changed",
		"plain", "authority", "expired"}[r]
}

// trust reports whether the reason is that one side does not trust the other side. An operator has to fix that.
func (r Reason) trust() bool {
	switch r {
	case ReasonCertificate, ReasonTLS, ReasonPlain, ReasonAuthority, ReasonExpired:
		return true
	}
	return false
}

// Refusal is the error of a connection that was refused by this node or by the other side. Errors of Call and of the
// Raft transport wrap it.
type Refusal struct {
	Reason Reason
	Err    *fault.Error
	here   bool // this side refused
}

// Distrust returns the error for a certificate that was refused for the given reason. err has the details.
// Options.VerifyPeer may return such an error.
func Distrust(reason Reason, err error) error {
	return &Refusal{Reason: reason, Err: &fault.Error{Code: fault.Denied, Op: "peer.verify", Err: err}}
}

// distrusted returns the refusal of a connection whose other side could not be verified because of err. side is the
// name of the other side in the message, for example "the caller".
func distrusted(side string, err error) *Refusal {
	reason, ok := RefusedBecause(err)
	if !ok {
		reason = ReasonCertificate
	}
	return &Refusal{Reason: reason, here: true,
		Err: &fault.Error{Code: fault.Denied, Op: "peer.verify", Msg: side + " is not trusted", Err: err}}
}

// Error returns the text of r.Err.
func (r *Refusal) Error() string { return r.Err.Text() }

// Unwrap returns r.Err.
func (r *Refusal) Unwrap() error { return r.Err }

// RefusedBecause returns the reason if err comes from a refused connection, and false otherwise.
func RefusedBecause(err error) (Reason, bool) {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Reason, true
	}
	return 0, false
}

func refuse(reason Reason, code fault.Code, msg, hint string) *Refusal {
	return &Refusal{Reason: reason, Err: &fault.Error{Code: code, Op: "peer.accept", Msg: msg, Hint: hint}}
}
