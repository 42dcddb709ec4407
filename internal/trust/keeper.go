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

// Material contains the secrets and certificates by which nodes trust each other.
type Material struct {
	Tokens []Token // one or two: the first issues and encrypts, all are accepted
	// Own is an external certificate; nil = none. If it is set, the tokens are used only for gossip keys.
	Own *Pair
}

// Timing is the validity of certificates. Zero fields mean defaults.
type Timing struct {
	// Life is how long a certificate is valid after its issue; default one day. It is renewed after two thirds of
	// that time.
	Life time.Duration
	// Backdate is how long before its issue a certificate is already valid, for nodes whose clocks are slow; default
	// one hour.
	Backdate time.Duration
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

// Keeper holds the current credentials of this node and renews them.
type Keeper struct {
	now     func() time.Time
	timing  Timing
	current atomic.Pointer[credentials]

	mu       sync.Mutex // guards the fields below, and orders changes of current
	material Material
	id       *Identity // nil until Identify
	issued   time.Time
}

// credentials are the credentials in use. They do not change.
type credentials struct {
	own          bool
	fingerprints []string // fingerprints of the tokens
	keys         [][]byte // keys for gossip
	issuer       *authority
	roots        *x509.CertPool
	leaf         *tls.Certificate // nil until there is an identity
}

// NewKeeper returns a Keeper that can verify other nodes. Unless m contains an external certificate, this node has no
// certificate until Identify is called. NewKeeper returns fault.Invalid if m is invalid.
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
		return nil, fault.New(fault.Invalid, "trust.Keeper",
			fmt.Sprintf("there are %d cluster tokens, one or two are needed", len(m.Tokens)))
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

// Identify sets or changes the identity of this node, and issues a certificate for it. If there is an external
// certificate, Identify instead checks that other nodes would accept that certificate for the identity. changed is
// false if this node already has this identity.
//
// Identify returns fault.Invalid if id is invalid, and fault.Denied if other nodes would refuse the external
// certificate. After an error, nothing has changed.
func (k *Keeper) Identify(id Identity) (changed bool, err error) {
	if err := id.check(); err != nil {
		return false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.id != nil && k.id.equal(id) {
		return false, nil
	}
	err = k.install(k.material, &id)
	return err == nil, err
}

// Replace replaces the tokens, the authorities and the external certificate of this node. From then on, the node
// accepts only certificates of the new authorities. Without an external certificate, the authorities are derived from
// the tokens.
//
// Replace returns fault.Invalid if m is invalid, and fault.Denied if other nodes would refuse the external certificate.
// After an error, nothing has changed.
func (k *Keeper) Replace(m Material) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.install(m, k.id)
}

// Renew issues a new certificate if the current one is older than two thirds of Timing.Life. It also issues one if the
// clock was set back to a time more than half of Timing.Backdate before the issue of the current certificate. changed
// is true if a new certificate was issued.
//
// Renew does nothing before Identify is called, or if there is an external certificate. Use Replace to change an
// external certificate.
func (k *Keeper) Renew() (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	age := k.now().Sub(k.issued)
	if k.id == nil || k.material.Own != nil || age >= -k.timing.Backdate/2 && age < k.timing.Life*2/3 {
		return false, nil
	}
	err = k.install(k.material, k.id)
	return err == nil, err
}

// install makes credentials and starts to use them. The caller holds mu.
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

// checkOwn returns an error if other nodes would refuse the certificate of this node.
func (c *credentials) checkOwn(id Identity, now time.Time) error {
	var chain []*x509.Certificate
	for _, der := range c.leaf.Certificate {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return &fault.Error{Code: fault.Invalid, Op: "trust.Identify",
				Msg: "the cluster certificate cannot be read", Err: err}
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

// Keys returns the keys for gossip. The first key encrypts messages. Each of the keys can decrypt messages.
func (k *Keeper) Keys() [][]byte { return k.current.Load().keys }

// Server returns the TLS configuration for accepted connections of a protocol, or nil if this node has no certificate
// yet. With this configuration, the dialing node must send a certificate that is valid and issued by an accepted
// authority. After the handshake, call Verify to check that the certificate belongs to the expected server.
func (k *Keeper) Server(protocol string) *tls.Config {
	c := k.config(protocol)
	if c != nil {
		c.ClientAuth = tls.RequireAnyClientCert // VerifyConnection checks the certificate
	}
	return c
}

// Client returns the TLS configuration for dialed connections of a protocol, or nil if this node has no certificate
// yet. With this configuration, the other side must send a certificate that is valid and issued by an accepted
// authority. After the handshake, call Verify to check that the certificate belongs to the expected server.
func (k *Keeper) Client(protocol string) *tls.Config {
	c := k.config(protocol)
	if c != nil {
		// Host names mean nothing here. VerifyConnection checks the chain, and Verify the node.
		c.InsecureSkipVerify = true
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
		SessionTicketsDisabled: true, // every connection is checked against the current credentials
		VerifyConnection:       k.verifyChain,
		Time:                   k.now,
	}
}

// Status describes the credentials in use.
type Status struct {
	Own      bool     // external certificates
	Tokens   []string // fingerprints: the first is used, the second is accepted
	Apps     []App    // applications that the certificate names
	NotAfter time.Time
}

// Status returns the credentials in use. While this node has no certificate, the fields about it are zero.
func (k *Keeper) Status() Status {
	c := k.current.Load()
	s := Status{Own: c.own, Tokens: c.fingerprints}
	if c.leaf == nil {
		return s
	}
	leaf := c.leaf.Leaf
	if leaf == nil { // package tls has filled in the field Leaf since Go 1.23
		return s
	}
	s.Apps, s.NotAfter = identityOf(leaf).Apps, leaf.NotAfter
	return s
}
