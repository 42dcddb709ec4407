package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func TestCheck_ReadsFilesWithKeys(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("no token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*node.Config){
		"": func(*node.Config) {},
		"--cluster-token-file " + absent + " cannot be read": func(c *node.Config) {
			c.Security.ClusterTokenFile = absent
		},
		"--cluster-token-file " + wrong + " cannot be used": func(c *node.Config) {
			c.Security.ClusterTokenFile = wrong
		},
		"backup: keyFile " + absent + " cannot be read": func(c *node.Config) {
			c.Backup = node.Backup{Directory: "/b", Every: time.Hour, Keep: 1, KeyFile: absent}
		},
	} {
		c := config(t)
		change(&c)
		_, err := node.Check(t.Context(), c, os.LookupEnv)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(fault.Text(err), want) {
			t.Errorf("Check: %v; want %q", err, want)
		}
	}
}
