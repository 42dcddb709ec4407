package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node/credentials"
)

const (
	alertWait      = 300 * time.Millisecond // wait for the alert of a node that refuses the certificate of this node
	certificateLow = 7 * 24 * time.Hour     // remaining validity below which a certificate from a file is a warning
)

// examineKeys reads the credential files and issues a certificate from them, as a node does at its start. It returns
// nil if no files are configured, or if the files cannot be used.
func examineKeys(c *checkup, p *Plan) *trust.Keeper {
	if !p.Credentials.Given() {
		return nil
	}
	k, warnings, err := p.Credentials.Try(p.NodeID)
	if err != nil {
		var f *fault.Error
		hint := "fix the file, or make a token with: quorate token create"
		if errors.As(err, &f) && f.Hint != "" {
			hint = f.Hint
		}
		c.add("keys", "", schema.CheckFail, fault.Text(err), hint)
		return nil
	}
	for _, w := range warnings {
		c.add("keys", "files", schema.CheckWarn, w, "")
	}
	st := k.Status()
	text := "token " + strings.Join(st.Tokens, ", accepting ")
	if !st.Own {
		c.add("keys", "", schema.CheckOK, text, "")
		return k
	}
	level := schema.CheckOK
	if time.Until(st.NotAfter) < certificateLow {
		level = schema.CheckWarn
	}
	c.add("keys", "", level, text+"; the certificate of this node expires at "+st.NotAfter.UTC().Format(time.RFC3339),
		"replace the certificate before it expires")
	return k
}

// trusts returns nil if this node and the node at the other end of c accept each other's certificates. In TLS 1.3, the
// other node may refuse the certificate only after the handshake. Therefore trusts waits up to alertWait for a refusal.
func trusts(ctx context.Context, c net.Conn, k *trust.Keeper) error {
	secure := tls.Client(c, k.Client(credentials.GossipProtocol))
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
