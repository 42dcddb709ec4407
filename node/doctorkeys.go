package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/trust"
)

const (
	alertWait      = 300 * time.Millisecond // a node that does not accept our certificate says so within it
	certificateLow = 7 * 24 * time.Hour     // a certificate made elsewhere that ends sooner is a warning
)

// examineKeys reads the files of credentials as a start would, and issues a certificate
// from them. The keeper is nil if there are none, or if they cannot be used.
func examineKeys(c *checkup, conf Config) *trust.Keeper {
	s := conf.Security
	if !s.secured() {
		return nil
	}
	m, _, warnings, err := s.read()
	var k *trust.Keeper
	if err == nil {
		k, err = trust.NewKeeper(m, s.Certificates, time.Now)
	}
	if err == nil {
		node := cmp.Or(conf.Cluster.NodeID, conf.Cluster.defaultID(), "doctor")
		_, err = k.Identify(trust.Identity{Node: node, Server: node + ".doctor"})
	}
	if err != nil {
		var f *fault.Error
		mend := "mend the file, or make a token with: quorate token create"
		if errors.As(err, &f) && f.Hint != "" {
			mend = f.Hint
		}
		c.add("keys", "", api.CheckFail, fault.Text(err), mend)
		return nil
	}
	for _, w := range warnings {
		c.add("keys", "files", api.CheckWarn, w, "")
	}
	st := k.Status()
	text := "token " + strings.Join(st.Tokens, ", accepting ")
	if !st.Own {
		c.add("keys", "", api.CheckOK, text, "")
		return k
	}
	level := api.CheckOK
	if time.Until(st.NotAfter) < certificateLow {
		level = api.CheckWarn
	}
	c.add("keys", "", level, text+"; the certificate of this node ends at "+st.NotAfter.UTC().Format(time.RFC3339), "put a new certificate in its place before it ends")
	return k
}

// trusts finds out whether the node behind c and this one accept each other. A server of
// TLS 1.3 judges the certificate of the client after the handshake: who is refused is told
// right then, who is not is told nothing.
func trusts(ctx context.Context, c net.Conn, k *trust.Keeper) error {
	secure := tls.Client(c, k.Client(gossipProtocol))
	if err := secure.HandshakeContext(ctx); err != nil {
		return err
	}
	if err := secure.SetReadDeadline(time.Now().Add(alertWait)); err != nil {
		return err
	}
	_, err := secure.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}
