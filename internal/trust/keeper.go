package trust

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Material is what trust rests on.
type Material struct {
	Tokens []Token // one or two: the first issues and encrypts, all are accepted
	Own    *Pair   // certificates made elsewhere: then the tokens make nothing but gossip keys
}

// Timing says how long certificates hold. Zero fields take defaults.
type Timing struct {
	Life     time.Duration // from the moment of issue; default a day. After two thirds of it the next one is issued
	Backdate time.Duration // how much earlier it holds already, for clocks that are behind; default an hour
}

func (t Timing) withDefaults() Timing {
	if t.Life <= 0 {
		t.Life = 24 * time.Hour
	}
	if t.Backdate <= 0 {
		t.Backdate = time.Hour
	}
	return t
}

// Keeper holds the credentials of this node that are in effect, and renews them.
type Keeper struct {
	now     func() time.Time
	timing  Timing
	current atomic.Pointer[credentials]

	mu       sync.Mutex // guards what follows, and orders changes of current
	material Material
	id       *Identity // nil until Identify
	issued   time.Time
}

// credentials are what is in effect. They do not change.
type credentials struct {
	own          bool
	fingerprints []string // of the tokens
	keys         [][]byte // for gossip
	issuer       *authority
	roots        *x509.CertPool
	leaf         *tls.Certificate // nil until there is an identity
}

// NewKeeper makes a keeper that accepts others and has no certificate until Identify.
// Errors: invalid.
func NewKeeper(m Material, t Timing, now func() time.Time) (*Keeper, error) {
	c, err := m.credentials()
	if err != nil {
		return nil, err
	}
	k := &Keeper{now: now, timing: t.withDefaults(), material: m}
	k.current.Store(c)
	return k, nil
}

func (m Material) credentials() (*credentials, error) {
	if len(m.Tokens) == 0 || len(m.Tokens) > maxTokens {
		return nil, fault.New(fault.Invalid, "trust.Keeper", fmt.Sprintf("there are %d cluster tokens, one or two are needed", len(m.Tokens)))
	}
	c := &credentials{own: m.Own != nil, roots: x509.NewCertPool()}
	for i, t := range m.Tokens {
		c.keys = append(c.keys, t.GossipKey())
		c.fingerprints = append(c.fingerprints, t.Fingerprint())
		if m.Own != nil {
			continue
		}
		a, err := newAuthority(t)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			c.issuer = a
		}
		c.roots.AddCert(a.cert)
	}
	if m.Own != nil {
		c.roots, c.leaf = m.Own.roots, &m.Own.cert
	}
	return c, nil
}

// Identify says who this node is, or that it serves other applications now, and issues its
// certificate; one that was made elsewhere is checked. It reports whether the certificate
// is another one now. After an error all stays as it was. Errors: invalid; denied for a
// certificate made elsewhere that this node itself would refuse.
func (k *Keeper) Identify(id Identity) (changed bool, err error) {
	if err := id.check(); err != nil {
		return false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.id != nil && k.id.equal(id) {
		return false, nil
	}
	return true, k.install(k.material, &id)
}

// Replace puts other material in the place of the old: everything that rests on tokens or
// authorities that are not in it any more is refused from now on. After an error all stays
// as it was. Errors as of Identify.
func (k *Keeper) Replace(m Material) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.install(m, k.id)
}

// Renew issues the next certificate if it is time, or if the clock was set back behind the
// beginning of the current one, and reports whether it did. Certificates made elsewhere are
// renewed by Replace.
func (k *Keeper) Renew() (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	age := k.now().Sub(k.issued)
	if k.id == nil || k.material.Own != nil || age >= -k.timing.Backdate/2 && age < k.timing.Life*2/3 {
		return false, nil
	}
	return true, k.install(k.material, k.id)
}

// install makes credentials and puts them into effect. The caller holds mu.
func (k *Keeper) install(m Material, id *Identity) error {
	c, err := m.credentials()
	if err != nil {
		return err
	}
	now := k.now()
	switch {
	case id == nil:
	case m.Own != nil:
		err = c.checkOwn(*id, now)
	default:
		c.leaf, err = c.issuer.issue(*id, now.Add(-k.timing.Backdate), now.Add(k.timing.Life))
	}
	if err != nil {
		return err
	}
	k.material, k.id, k.issued = m, id, now
	k.current.Store(c)
	return nil
}

// checkOwn refuses a certificate of this node that other nodes would refuse.
func (c *credentials) checkOwn(id Identity, now time.Time) error {
	var chain []*x509.Certificate
	for _, der := range c.leaf.Certificate {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return &fault.Error{Code: fault.Invalid, Op: "trust.Identify", Msg: "the cluster certificate cannot be read", Err: err}
		}
		chain = append(chain, cert)
	}
	if err := c.verify(chain, now); err != nil {
		return fault.Wrap(err, "trust.Identify", "others would refuse this node's certificate")
	}
	if _, err := identityOf(chain[0]).speaksFor(id.Server, chain[0].DNSNames); err != nil {
		return fault.Wrap(err, "trust.Identify", "others would refuse this node's certificate")
	}
	return nil
}

// Keys are the keys for gossip: the first encrypts, all decrypt.
func (k *Keeper) Keys() [][]byte { return k.current.Load().keys }

// Server is the configuration for a connection that was accepted, for the protocol named;
// nil as long as there is no certificate. It asks for a certificate and verifies it, but
// for whom it speaks for.
func (k *Keeper) Server(protocol string) *tls.Config {
	c := k.config(protocol)
	if c != nil {
		c.ClientAuth = tls.RequireAnyClientCert // and VerifyConnection
	}
	return c
}

// Client is the configuration for a connection that was dialled. It verifies the other
// side's certificate, but for whom it speaks for.
func (k *Keeper) Client(protocol string) *tls.Config {
	c := k.config(protocol)
	if c != nil {
		c.InsecureSkipVerify = true // names of hosts mean nothing here: VerifyConnection checks the chain, Verify the node
	}
	return c
}

func (k *Keeper) config(protocol string) *tls.Config {
	leaf := k.current.Load().leaf
	if leaf == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*leaf}, NextProtos: []string{protocol},
		SessionTicketsDisabled: true, // every connection is judged by what is in effect
		VerifyConnection:       k.verifyChain,
		Time:                   k.now,
	}
}

// Status says what is in effect.
type Status struct {
	Own      bool     // certificates made elsewhere
	Tokens   []string // fingerprints: the first is used, the second accepted
	Apps     []App    // that the certificate names
	NotAfter time.Time
}

// Status says what is in effect. Before Identify there is no certificate made here.
func (k *Keeper) Status() Status {
	c := k.current.Load()
	s := Status{Own: c.own, Tokens: c.fingerprints}
	if c.leaf == nil {
		return s
	}
	leaf := c.leaf.Leaf
	if leaf == nil { // since Go 1.23 package tls keeps it
		return s
	}
	s.Apps, s.NotAfter = identityOf(leaf).Apps, leaf.NotAfter
	return s
}
