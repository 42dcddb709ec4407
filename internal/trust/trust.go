// Package trust decides which nodes belong to a cluster. From a cluster token it derives a key for gossip, and a
// certificate authority that is the same on every node. It issues this node's certificate and verifies the certificates
// of other nodes. Nodes can also use external certificates, which another authority has issued.
//
// It owns the format of tokens, the labels of derived keys, the content of node certificates, and the reasons for
// refusing a certificate. It does no I/O: the caller passes in tokens, certificates and the clock. It has no
// goroutines. A Keeper is safe for concurrent use. All other types are immutable.
package trust

import (
	"errors"

	"github.com/quorate/quorate/internal/fault"
)

// Doubt is the reason why a certificate was refused. The constants below are the complete list. Their values are metric
// labels.
type Doubt string

// The doubts.
const (
	Foreign Doubt = "authority"   // issued by an authority that this node does not accept
	Untimed Doubt = "expired"     // expired or not valid yet, by this node's clock
	Unfit   Doubt = "certificate" // from an accepted authority but not usable, for example for another server
)

// Distrust is the error for a refused certificate. Errors of this package wrap it.
type Distrust struct {
	Doubt Doubt
	Err   *fault.Error
}

// Error returns the text of d.Err.
func (d *Distrust) Error() string { return d.Err.Text() }

// Unwrap returns d.Err.
func (d *Distrust) Unwrap() error { return d.Err }

// DoubtOf returns the reason if err comes from a refused certificate, and false otherwise.
func DoubtOf(err error) (Doubt, bool) {
	var d *Distrust
	if errors.As(err, &d) {
		return d.Doubt, true
	}
	return "", false
}

func distrust(d Doubt, msg, hint string) *Distrust {
	return &Distrust{Doubt: d, Err: &fault.Error{Code: fault.Denied, Op: "trust.Verify", Msg: msg, Hint: hint}}
}
