package credentials

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
)

// APITokens holds the tokens that the API accepts. Set replaces them.
type APITokens interface{ Set(tokens []string) error }

// APITokenFile is the file of --api-token-file, which the node reads again when it changes. To replace a token without
// a restart, first add the new token to the file, and later remove the old one.
type APITokenFile struct {
	Path    string
	Fixed   []string // tokens that do not come from the file
	Current []string // tokens in effect, Fixed included
	Look    time.Duration
	Tokens  APITokens
	Logger  *slog.Logger

	problem string // the error that was logged last; empty = none
}

// ParseAPITokens returns the API tokens in the text of a token file. The file has one token per line. Empty lines and
// lines that begin with # are ignored.
func ParseAPITokens(text []byte) []string {
	var out []string
	for line := range strings.Lines(string(userfile.Text(text))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

// Follow reads the file periodically and applies changed tokens, until ctx ends.
func (f *APITokenFile) Follow(ctx context.Context) {
	tick := time.NewTicker(durationOr(f.Look, lookPause))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.reload()
		}
	}
}

// reload reads the token file and applies its tokens. If the file is missing or has no token, the previous tokens stay
// valid. The problem is logged once.
func (f *APITokenFile) reload() {
	tokens, err := f.read()
	if err == nil && slices.Equal(tokens, f.Current) {
		f.problem = ""
		return
	}
	if err == nil {
		err = f.Tokens.Set(tokens)
	}
	if err != nil {
		if text := fault.Text(err); text != f.problem {
			f.problem = text
			f.Logger.Error("the new API tokens cannot be used; the previous ones stay in effect", "error", text)
		}
		return
	}
	f.Current, f.problem = tokens, ""
	f.Logger.Info("the API tokens were replaced", "file", f.Path, "tokens", len(tokens))
}

func (f *APITokenFile) read() ([]string, error) {
	text, err := userfile.Read(f.Path)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "node.Tokens",
			Msg: "the file of --api-token-file cannot be read", Err: err, Key: f.Path}
	}
	found := ParseAPITokens(text)
	if len(found) == 0 {
		return nil, &fault.Error{Code: fault.Invalid, Op: "node.Tokens",
			Msg: "the file of --api-token-file holds no token: " + f.Path, Hint: "put one token on each line",
			Key: f.Path}
	}
	return append(slices.Clone(f.Fixed), found...), nil
}
