package credentials

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/membership"
)

// Names of the TLS protocols (ALPN) between nodes. The peer port and the gossip port use different names. Therefore
// neither port accepts a connection that is meant for the other port.
const (
	PeerProtocol   = "quorate-peer/1"
	GossipProtocol = "quorate-gossip/1"
)

const (
	lookPause    = 2 * time.Second  // interval of the checks for changed files
	refusedPause = time.Minute      // wait before refused files are tried again
	recheckPause = time.Minute      // interval at which the certificates of open connections are checked
	drainGrace   = 10 * time.Second // wait before connections that are no longer trusted are closed
)

// Options are the dependencies of Open. All are required.
type Options struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
}

// Credentials prove the identity of this node and verify other nodes. They are safe for concurrent use, but Follow must
// be called only once.
//
// A nil *Credentials means that traffic between nodes is not secured. Only these methods accept nil: Identify,
// SecurePeer, SecureGossip, Status, JoinHint and Issues.
type Credentials struct {
	files   Files
	keeper  *trust.Keeper
	log     *slog.Logger
	now     func() time.Time
	changes *prometheus.CounterVec
	watcher Observer               // nil = none
	problem atomic.Pointer[string] // why the current files are not applied; nil = they are
	tried   [sha256.Size]byte      // hash of the files that were tried last; used only by Follow
	again   time.Time              // when refused files are tried again; used only by Follow
}

// Observer is notified of renewals of the node's certificate. The parameter ok is false if a renewal has failed.
type Observer interface{ Renewed(ok bool) }

// Report makes o the observer of renewals. Call it before Follow.
func (c *Credentials) Report(o Observer) { c.watcher = o }

// Connections are the connections between nodes.
type Connections interface {
	// Renew makes new connections use changed credentials.
	Renew()
	// Recheck closes the connections whose certificate is not trusted any more.
	Recheck()
}

// Open reads the credential files and registers the metrics. It returns nil if no files are configured. Call Open
// before anything else is opened, so that invalid files are reported early.
func Open(f Files, o Options) (*Credentials, error) {
	changes := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_cluster_credential_changes_total",
		Help: "Changes of the credentials between nodes: certificates renewed, files loaded, files refused."},
		[]string{"outcome"})
	for _, outcome := range []string{"renewed", "reloaded", "refused"} {
		changes.WithLabelValues(outcome)
	}
	c, err := read(f, o, changes)
	if err != nil {
		return nil, err
	}
	expiry := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "quorate_cluster_certificate_expiry_timestamp_seconds",
		Help: "When this node's certificate between nodes ends; 0 without one."}, c.end)
	o.Registerer.MustRegister(changes, expiry)
	return c, nil
}

func read(f Files, o Options, changes *prometheus.CounterVec) (*Credentials, error) {
	if !f.Given() {
		return nil, nil
	}
	m, sum, warnings, err := f.Read()
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		o.Logger.Warn(w)
	}
	k, err := trust.NewKeeper(m, f.Certificates, o.Now)
	if err != nil {
		return nil, err
	}
	return &Credentials{files: f, keeper: k, log: o.Logger, now: o.Now, changes: changes, tried: sum}, nil
}

// end returns the expiry time of the certificate in Unix seconds, or 0 if there is no certificate.
func (c *Credentials) end() float64 {
	if c == nil {
		return 0
	}
	if end := c.keeper.Status().NotAfter; !end.IsZero() {
		return float64(end.Unix())
	}
	return 0
}

// Identify sets the identity of this node, and issues a certificate for it. If the certificate comes from a file,
// Identify checks that certificate instead (see trust.Keeper.Identify). changed is false if the node already has this
// identity.
func (c *Credentials) Identify(id trust.Identity) (changed bool, err error) {
	if c == nil {
		return false, nil
	}
	return c.keeper.Identify(id)
}

// Keys returns the gossip keys. The first one encrypts; all of them decrypt.
func (c *Credentials) Keys() [][]byte { return c.keeper.Keys() }

// Announce logs which credentials are in use.
func (c *Credentials) Announce() { c.logChange("traffic between nodes is secured") }

func (c *Credentials) logChange(msg string) {
	st := c.keeper.Status()
	c.log.Info(msg, "tokens", st.Tokens, "own_certificates", st.Own, "certificate_ends", st.NotAfter.UTC())
}

// Follow keeps the credentials current until ctx ends. At intervals, it reloads changed files, renews the certificate,
// and verifies the certificates of open connections again.
func (c *Credentials) Follow(ctx context.Context, all Connections) {
	look := time.NewTicker(durationOr(c.files.Look, lookPause))
	defer look.Stop()
	refresh := durationOr(c.files.Certificates.Life, 24*time.Hour) / 4
	renewed, check := time.Now(), time.Now().Add(recheckPause)
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		changed := c.reload()
		if c.renew() {
			changed = true
		}
		if changed || now.Sub(renewed) >= refresh {
			all.Renew()
			renewed = now
		}
		if grace := now.Add(durationOr(c.files.Drain, drainGrace)); changed && grace.Before(check) {
			check = grace
		}
		if !now.Before(check) {
			all.Recheck()
			check = now.Add(recheckPause)
		}
	}
}

func durationOr(d, other time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return other
}

// reload applies the credential files if they have changed. It returns true if new credentials are in effect. If the
// new files cannot be used, the previous credentials stay in effect. reload tries again after refusedPause, because a
// certificate may become valid later.
func (c *Credentials) reload() (changed bool) {
	m, sum, warnings, err := c.files.Read()
	problem := c.problem.Load()
	if sum == c.tried && (problem == nil || c.now().Before(c.again)) {
		return false
	}
	repeated := sum == c.tried
	c.tried, c.again = sum, c.now().Add(refusedPause)
	if err == nil {
		err = c.keeper.Replace(m)
	}
	if err != nil {
		text := fault.Text(err)
		c.problem.Store(&text)
		if repeated {
			return false
		}
		c.changes.WithLabelValues("refused").Inc()
		if errors.Is(err, fs.ErrNotExist) { // for example, the directory is removed while the node ends
			c.log.Warn("a credential file was removed; the previous credentials stay in effect until this node stops",
				"error", text)
			return false
		}
		c.log.Error("changed credentials are refused; the previous ones stay in effect", "error", text)
		return false
	}
	for _, w := range warnings {
		c.log.Warn(w)
	}
	c.problem.Store(nil)
	c.changes.WithLabelValues("reloaded").Inc()
	c.logChange("changed credentials are in effect")
	return true
}

// renew issues the next certificate if it is due. It reports whether it has issued one.
func (c *Credentials) renew() (changed bool) {
	changed, err := c.keeper.Renew()
	if err != nil { // unlikely, because the last certificate could be issued
		c.log.Error("the certificate of this node cannot be renewed", "error", err)
		c.tell(false)
		return false
	}
	if changed {
		c.changes.WithLabelValues("renewed").Inc()
		c.tell(true)
		c.log.Info("the certificate of this node was renewed", "certificate_ends", c.keeper.Status().NotAfter.UTC())
	}
	return changed
}

func (c *Credentials) tell(renewed bool) {
	if c.watcher != nil {
		c.watcher.Renewed(renewed)
	}
}

// SecurePeer makes the peer port use the credentials.
func (c *Credentials) SecurePeer(o *peer.Options) {
	if c == nil {
		return
	}
	o.TLS = func() (server, client *tls.Config) {
		server, client = c.keeper.Server(PeerProtocol), c.keeper.Client(PeerProtocol)
		if server == nil {
			return nil, nil
		}
		server.VerifyConnection = nil // VerifyPeer verifies instead, because its reasons reach the calling node
		check := client.VerifyConnection
		client.VerifyConnection = func(s tls.ConnectionState) error { return distrust(check(s)) }
		return server, client
	}
	o.VerifyPeer = func(s tls.ConnectionState, server string) (peer.Caller, error) {
		id, err := c.keeper.Verify(s, server)
		if err != nil {
			return peer.Caller{}, distrust(err)
		}
		caller := peer.Caller{Node: id.Node}
		for _, a := range id.Apps {
			caller.Apps = append(caller.Apps, a.String())
		}
		return caller, nil
	}
}

// distrust converts an error of package trust about a refused certificate into an error of package peer with the same
// reason. It returns other errors unchanged.
func distrust(err error) error {
	doubt, ok := trust.DoubtOf(err)
	if !ok {
		return err
	}
	reason := peer.ReasonCertificate
	switch doubt {
	case trust.Foreign:
		reason = peer.ReasonAuthority
	case trust.Untimed:
		reason = peer.ReasonExpired
	}
	return peer.Distrust(reason, err)
}

// SecureGossip makes gossip use the credentials.
func (c *Credentials) SecureGossip(o *membership.Options) {
	if c == nil {
		return
	}
	o.SecretKeys = c.keeper.Keys()
	o.TLS = func() (server, client *tls.Config) {
		return c.keeper.Server(GossipProtocol), c.keeper.Client(GossipProtocol)
	}
}

// Status returns how traffic between nodes is secured.
func (c *Credentials) Status() schema.SecurityStatus {
	if c == nil {
		return schema.SecurityStatus{Nodes: "none"}
	}
	st := c.keeper.Status()
	out := schema.SecurityStatus{Nodes: "token", Tokens: st.Tokens}
	if st.Own {
		out.Nodes = "certificates"
	}
	if !st.NotAfter.IsZero() {
		end := st.NotAfter.UTC()
		out.CertificateEnds = &end
	}
	return out
}

// JoinHint returns a text to append to the error of a node that could not join. If this node has no credentials, the
// text names the flag for the cluster token. Otherwise it is "".
func (c *Credentials) JoinHint() string {
	if c != nil {
		return ""
	}
	return "; if the cluster has a token, give this node its --cluster-token-file"
}

// Issues returns the problems that an operator has to fix.
func (c *Credentials) Issues() []schema.Issue {
	if c == nil {
		return nil
	}
	var out []schema.Issue
	if why := c.problem.Load(); why != nil {
		out = append(out, schema.Issue{About: "credentials",
			Reason: "the changed files are refused, and the previous credentials stay in effect: " + *why})
	}
	if end := c.keeper.Status().NotAfter; !end.IsZero() && c.now().After(end) {
		out = append(out, schema.Issue{About: "credentials", Reason: "the certificate of this node has expired at " +
			end.UTC().Format(time.RFC3339) + ": replace the file of --cluster-cert-file"})
	}
	return out
}
