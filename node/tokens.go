package node

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// ParseTokens reads a file with API tokens: one on each line, lines that begin with #
// being comments.
func ParseTokens(text []byte) []Secret {
	var out []Secret
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, Secret(line))
		}
	}
	return out
}

// buildTokens follows the file with API tokens, so that tokens are exchanged without a
// restart: first the file has both, then the old one goes.
func (n *Node) buildTokens(context.Context) error {
	c := n.config.Security
	if c.APITokenFile == "" {
		return nil
	}
	f := &tokenFile{path: c.APITokenFile, current: c.APITokens, fixed: c.APITokens[:max(0, len(c.APITokens)-c.FileTokens)]}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(durationOr(c.Look, lookPause))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				n.followTokens(f)
			}
		}
	})
	return n.closers.Push("api tokens", func(context.Context) error {
		cancel()
		wg.Wait()
		return nil
	})
}

// tokenFile is the state of following a file.
type tokenFile struct {
	path    string
	fixed   []Secret // tokens that do not come from the file
	current []Secret // tokens in force
	problem string   // what was logged last
}

// followTokens puts the tokens of the file in force. While the file is missing, or holds
// none, those that are in force stay, and the log says so once.
func (n *Node) followTokens(f *tokenFile) {
	tokens, err := f.read()
	if err == nil && slices.Equal(tokens, f.current) {
		f.problem = ""
		return
	}
	if err == nil {
		err = n.tokens.Set(reveal(tokens))
	}
	if err != nil {
		if text := fault.Text(err); text != f.problem {
			f.problem = text
			n.log.Error("the API tokens stay as they were", "error", text)
		}
		return
	}
	f.current, f.problem = tokens, ""
	n.log.Info("the API tokens were exchanged", "file", f.path, "tokens", len(tokens))
}

func (f *tokenFile) read() ([]Secret, error) {
	text, err := os.ReadFile(f.path)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "node.Tokens", Msg: "the file of --api-token-file cannot be read", Err: err, Key: f.path}
	}
	found := ParseTokens(text)
	if len(found) == 0 {
		return nil, &fault.Error{Code: fault.Invalid, Op: "node.Tokens", Msg: "the file of --api-token-file holds no token: " + f.path, Hint: "put one token on each line", Key: f.path}
	}
	return append(slices.Clone(f.fixed), found...), nil
}
