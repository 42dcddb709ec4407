package node

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	apipeer "github.com/quorate/quorate/api/peer"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/membership"
)

// The protocols that certificates of the cluster are used for. Their names keep a connection
// of one port from being taken for one of the other.
const (
	peerProtocol   = "quorate-peer/1"
	gossipProtocol = "quorate-gossip/1"
)

const (
	lookPause    = 2 * time.Second  // between looks at the files of credentials
	recheckPause = time.Minute      // between looks at the certificates of open connections
	drainGrace   = 10 * time.Second // what is under way has so long before what is not trusted any more is cut
)

// credentials are what this node proves itself with, and judges others by. They follow
// their files. nil stands for a node whose traffic is not secured.
type credentials struct {
	files   Security
	keeper  *trust.Keeper
	changes *prometheus.CounterVec
	problem atomic.Pointer[string] // why the files are not in effect; nil = they are
	tried   [sha256.Size]byte      // hash of the files that were tried last; used by the loop alone
}

// buildTrust reads the files of credentials, if there are any, so that a mistake in
// them ends the start before anything is opened.
func (n *Node) buildTrust(context.Context) error {
	changes := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_cluster_credential_changes_total",
		Help: "Changes of the credentials between nodes: certificates renewed, files taken in, files refused."}, []string{"outcome"})
	for _, o := range []string{"renewed", "reloaded", "refused"} {
		changes.WithLabelValues(o)
	}
	expiry := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "quorate_cluster_certificate_expiry_timestamp_seconds",
		Help: "When this node's certificate between nodes ends; 0 without one."}, n.certificateEnd)
	n.registry.MustRegister(changes, expiry)
	s := n.config.Security
	if !s.secured() {
		if exposed([]string{n.config.Cluster.Bind}) {
			n.log.Warn("traffic between nodes is neither encrypted nor authenticated: whoever reaches the gossip and peer ports can read and change everything", "bind_address", n.config.Cluster.Bind)
		}
		return nil
	}
	m, sum, warnings, err := s.read()
	if err != nil {
		return err
	}
	for _, w := range warnings {
		n.log.Warn(w)
	}
	k, err := trust.NewKeeper(m, s.Certificates, n.deps.Now)
	if err != nil {
		return err
	}
	n.credentials = &credentials{files: s, keeper: k, changes: changes, tried: sum}
	return nil
}

func (n *Node) certificateEnd() float64 {
	if n.credentials == nil {
		return 0
	}
	if end := n.credentials.keeper.Status().NotAfter; !end.IsZero() {
		return float64(end.Unix())
	}
	return 0
}

// secured reports whether there are credentials.
func (s Security) secured() bool { return s.ClusterTokenFile != "" }

// read reads the files. sum changes when they do. Errors are about one file, which they name.
func (s Security) read() (m trust.Material, sum [sha256.Size]byte, warnings []string, err error) {
	h := sha256.New()
	load := func(flag, path string, secret bool) []byte {
		if err != nil {
			return nil
		}
		var data []byte
		var warning string
		if data, warning, err = readCredential(flag, path, secret); warning != "" {
			warnings = append(warnings, warning)
		}
		fmt.Fprintf(h, "%d ", len(data))
		h.Write(data)
		return data
	}
	tokens := load("--cluster-token-file", s.ClusterTokenFile, true)
	var cert, key, ca []byte
	if s.ClusterCertFile != "" {
		cert, key, ca = load("--cluster-cert-file", s.ClusterCertFile, false), load("--cluster-key-file", s.ClusterKeyFile, true), load("--cluster-ca-file", s.ClusterCAFile, false)
	}
	sum = [sha256.Size]byte(h.Sum(nil))
	if err != nil {
		return m, sum, nil, err
	}
	if m.Tokens, err = trust.ParseTokens(tokens); err != nil {
		return m, sum, nil, &fault.Error{Code: fault.Invalid, Op: "node.credentials", Key: s.ClusterTokenFile, Msg: "--cluster-token-file " + s.ClusterTokenFile + " cannot be used", Err: err}
	}
	if s.ClusterCertFile != "" {
		if m.Own, err = trust.ReadPair(cert, key, ca); err != nil {
			return m, sum, nil, &fault.Error{Code: fault.Invalid, Op: "node.credentials", Key: s.ClusterCertFile, Msg: "--cluster-cert-file " + s.ClusterCertFile + " cannot be used", Err: err}
		}
	}
	return m, sum, warnings, nil
}

// maxCredential bounds a file of credentials, in bytes.
const maxCredential = 1 << 20

// readCredential reads a file. One that holds a secret must not be open to everybody; that
// a group may read it is a warning, because that is how some platforms hand secrets out.
func readCredential(flag, path string, secret bool) (data []byte, warning string, err error) {
	bad := func(msg, hint string, err error) error {
		return &fault.Error{Code: fault.Invalid, Op: "node.credentials", Key: path, Msg: flag + " " + path + " " + msg, Hint: hint, Err: err}
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, "", bad("cannot be read", "", unpath(err))
	case info.Size() > maxCredential:
		return nil, "", bad(fmt.Sprintf("has %d bytes, more than %d", info.Size(), maxCredential), "is it the right file?", nil)
	case secret && info.Mode().Perm()&0o027 != 0:
		return nil, "", bad(fmt.Sprintf("is open to others than its owner (mode %04o)", info.Mode().Perm()), "chmod 600 "+path, nil)
	case secret && info.Mode().Perm()&0o040 != 0:
		warning = fmt.Sprintf("%s %s can be read by its group (mode %04o); better: chmod 600 %s", flag, path, info.Mode().Perm(), path)
	}
	if data, err = os.ReadFile(path); err != nil {
		return nil, "", bad("cannot be read", "", unpath(err))
	}
	return data, warning, nil
}

// unpath takes the path out of an error that names it once more.
func unpath(err error) error {
	if e, ok := err.(*fs.PathError); ok { //nolint:errorlint // as package os returns it
		return e.Err
	}
	return err
}

// credentialIdentity is what the certificate of this node says: who it is on the peer port,
// and the applications it serves, in a trust domain; empty is the default one.
func (n *Node) credentialIdentity(domain string) trust.Identity {
	id := trust.Identity{Node: n.host.Identity().Node, Server: n.peerIdentity().Server}
	for _, app := range n.appIDs() {
		id.Apps = append(id.Apps, trust.NewApp(domain, n.config.Namespace, app))
	}
	return id
}

// certify issues this node's certificate, now that it knows who it is, and keeps it fresh
// until the node closes. To be called before the peer port opens.
func (n *Node) certify() error {
	c := n.credentials
	if c == nil {
		return nil
	}
	if _, err := c.keeper.Identify(n.credentialIdentity("")); err != nil {
		return err
	}
	st := c.keeper.Status()
	n.log.Info("traffic between nodes is secured", "tokens", st.Tokens, "own_certificates", st.Own, "certificate_ends", st.NotAfter.UTC())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.keepCredentials(ctx) })
	return n.closers.Push("credentials", func(context.Context) error {
		cancel()
		wg.Wait()
		return nil
	})
}

// certifyIn issues another certificate if a Configuration puts the applications into another
// trust domain than the certificate does.
func (n *Node) certifyIn(domain string) error {
	if n.credentials == nil {
		return nil
	}
	changed, err := n.credentials.keeper.Identify(n.credentialIdentity(domain))
	if changed && err == nil {
		n.useCredentials()
	}
	return err
}

// keepCredentials looks at the files, the certificate and the connections until ctx ends.
func (n *Node) keepCredentials(ctx context.Context) {
	look := time.NewTicker(durationOr(n.credentials.files.Look, lookPause))
	defer look.Stop()
	refresh := durationOr(n.credentials.files.Certificates.Life, 24*time.Hour) / 4
	renewed, check := time.Now(), time.Now().Add(recheckPause)
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		changed := n.credentials.reload(n)
		if n.credentials.renew(n) {
			changed = true
		}
		if changed || now.Sub(renewed) >= refresh {
			n.useCredentials()
			renewed = now
		}
		if grace := now.Add(durationOr(n.credentials.files.Drain, drainGrace)); changed && grace.Before(check) {
			check = grace
		}
		if !now.Before(check) {
			n.port.Recheck()
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

// reload takes the files in if they have changed. Files that cannot be used change nothing;
// the log and the status say so until they are mended.
func (c *credentials) reload(n *Node) (changed bool) {
	m, sum, warnings, err := c.files.read()
	if sum == c.tried {
		return false
	}
	c.tried = sum
	if err == nil {
		err = c.keeper.Replace(m)
	}
	if err != nil {
		text := fault.Text(err)
		c.problem.Store(&text)
		c.changes.WithLabelValues("refused").Inc()
		if errors.Is(err, fs.ErrNotExist) { // as when a directory is removed while its node ends
			n.log.Warn("a file of credentials is gone; those of before stay in effect until this node ends", "error", text)
			return false
		}
		n.log.Error("changed credentials are refused; those of before stay in effect", "error", text)
		return false
	}
	for _, w := range warnings {
		n.log.Warn(w)
	}
	c.problem.Store(nil)
	c.changes.WithLabelValues("reloaded").Inc()
	st := c.keeper.Status()
	n.log.Info("changed credentials are in effect", "tokens", st.Tokens, "own_certificates", st.Own, "certificate_ends", st.NotAfter.UTC())
	return true
}

// renew issues the next certificate if it is time.
func (c *credentials) renew(n *Node) (changed bool) {
	changed, err := c.keeper.Renew()
	if err != nil { // cannot be: the last one could be issued
		n.log.Error("the certificate of this node cannot be renewed", "error", err)
		return false
	}
	if changed {
		c.changes.WithLabelValues("renewed").Inc()
		n.log.Info("the certificate of this node is renewed", "certificate_ends", c.keeper.Status().NotAfter.UTC())
	}
	return changed
}

// useCredentials brings changed credentials to connections and gossip. Connections that were
// dialled from here are made anew now and then all the same: the other end's certificate
// must not expire under them, and it holds a third of its life at least when they are made.
func (n *Node) useCredentials() {
	n.rekeyGossip()
	n.port.Renew()
	n.renewCalls()
}

// renewCalls lets the next calls of applications make connections of their own, under the
// certificate of now. Calls under way end on theirs, which are closed then.
func (n *Node) renewCalls() {
	old := n.calls.client.Load()
	if old == nil {
		return
	}
	if n.calls.client.CompareAndSwap(old, apipeer.NewClient(n.port.Tunnel, n.advertised)) {
		old.Close()
	}
}

func (n *Node) rekeyGossip() {
	g := n.gossip.Load()
	if g == nil || n.credentials == nil {
		return
	}
	if err := g.Rekey(n.credentials.keeper.Keys()); err != nil {
		n.log.Error("the gossip keys cannot be changed", "error", err) // cannot be: they come from tokens
	}
}

// securePeer puts the peer port under the credentials.
func (n *Node) securePeer(o *peer.Options) {
	if n.credentials == nil {
		return
	}
	k := n.credentials.keeper
	o.TLS = func() (server, client *tls.Config) {
		server, client = k.Server(peerProtocol), k.Client(peerProtocol)
		if server == nil {
			return nil, nil
		}
		server.VerifyConnection = nil // VerifyPeer does it all, and its words reach the caller
		check := client.VerifyConnection
		client.VerifyConnection = func(s tls.ConnectionState) error { return distrust(check(s)) }
		return server, client
	}
	o.VerifyPeer = func(s tls.ConnectionState, server string) (peer.Caller, error) {
		id, err := k.Verify(s, server)
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

// distrust gives a refused certificate the reason that the peer port knows.
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

// secureGossip puts the gossip under the credentials.
func (n *Node) secureGossip(o *membership.Options) {
	if n.credentials == nil {
		return
	}
	k := n.credentials.keeper
	o.SecretKeys = k.Keys()
	o.TLS = func() (server, client *tls.Config) { return k.Server(gossipProtocol), k.Client(gossipProtocol) }
}

// securityStatus says how traffic between nodes is secured.
func (n *Node) securityStatus() api.SecurityStatus {
	if n.credentials == nil {
		return api.SecurityStatus{Nodes: "none"}
	}
	st := n.credentials.keeper.Status()
	out := api.SecurityStatus{Nodes: "token", Tokens: st.Tokens}
	if st.Own {
		out.Nodes = "certificates"
	}
	if !st.NotAfter.IsZero() {
		end := st.NotAfter.UTC()
		out.CertificateEnds = &end
	}
	return out
}

// tokenHint is what a node that is not secured may lack to be let in: nobody tells it.
func (n *Node) tokenHint() string {
	if n.credentials != nil {
		return ""
	}
	return "; if the cluster has a token, give this node its --cluster-token-file"
}

// credentialIssues are what an operator has to mend.
func (n *Node) credentialIssues() []api.Issue {
	if n.credentials == nil {
		return nil
	}
	var out []api.Issue
	if why := n.credentials.problem.Load(); why != nil {
		out = append(out, api.Issue{About: "credentials", Reason: "what the files say now is refused, and what they said before is in effect: " + *why})
	}
	if end := n.credentials.keeper.Status().NotAfter; !end.IsZero() && n.deps.Now().After(end) {
		out = append(out, api.Issue{About: "credentials", Reason: "the certificate of this node has expired at " + end.UTC().Format(time.RFC3339) + ": replace the file of --cluster-cert-file"})
	}
	return out
}
