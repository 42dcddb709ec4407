package cli_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// copier starts a node of the application shop with state in the store statestore. It returns a function that copies
// that state to the store orders.
func copier(t *testing.T, keys int) (c *console, run func(args ...string) result) {
	t.Helper()
	c = withNode(t, "--app-id", "shop")
	for n := range keys {
		c.want(0, "", "", "state", "set", "statestore", fmt.Sprintf("k%03d", n), fmt.Sprintf(`{"n": %d}`, n))
	}
	return c, func(args ...string) result {
		return c.run(append([]string{"state", "copy", "--from", "statestore", "--to", "orders", "--patience", "0s",
			"--progress", "0"}, args...)...)
	}
}

func wantOutput(t *testing.T, r result, code int, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if r.code != code || !strings.Contains(r.stdout+r.stderr, part) {
			t.Errorf("want code %d and %q: %+v", code, part, r)
		}
	}
}

func TestStateCopy_CopiesValuesTypesAndExpiry(t *testing.T) {
	c, run := copier(t, 25)
	c.stdin = "\x00\xff raw"
	c.want(0, "", "", "state", "set", "statestore", "raw", "--binary")
	c.stdin = "12"
	c.want(0, "", "", "state", "set", "statestore", "number as bytes", "--binary")
	c.want(0, "", "", "state", "set", "statestore", "short", `"soon gone"`, "--ttl", "1h")

	wantOutput(t, run("--dry-run"), 0, "Would copy 28 keys")
	c.want(1, "", "has no key", "state", "get", "orders", "k001")
	wantOutput(t, run("--verify"), 1, "Compared 28 keys", "missing in orders", "the stores differ in 28 keys",
		"k000 (missing in orders)")

	wantOutput(t, run("--batch", "7", "--app", "shop"), 0, "Copied 28 keys", "application shop",
		"from statestore to orders")
	c.want(0, `{"n": 24}`, "", "state", "get", "orders", "k024")
	c.want(0, "\x00\xff raw", "", "state", "get", "orders", "raw")
	for key, want := range map[string]string{"short": `"ttlExpireTime"`,
		"number as bytes": "application/octet-stream"} {
		if got := c.run("state", "get", "orders", key, "--json"); !strings.Contains(got.stdout, want) {
			t.Errorf("%s has no %s: %+v", key, want, got)
		}
	}
	wantOutput(t, run("--verify"), 0, "Compared 28 keys", "the same in both")
	wantOutput(t, run(), 0, "Copied 0 keys", "the same in both")
}

func TestStateCopy_KeepsValuesThatDiffer(t *testing.T) {
	c, run := copier(t, 3)
	c.want(0, "", "", "state", "set", "orders", "k001", `"newer"`)
	c.want(0, "", "", "state", "set", "orders", "k002", `{"n":2}`) // other white space only
	c.want(0, "", "", "state", "set", "orders", "own", `1`)
	r := run("--json")
	var report struct{ Seen, Copied, Same, Differ, Extra int64 }
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatal(err)
	}
	if r.code != 1 || report.Seen != 3 || report.Copied != 1 || report.Same != 1 || report.Differ != 1 {
		t.Errorf("%+v", r)
	}
	c.want(0, `"newer"`, "", "state", "get", "orders", "k001")
	wantOutput(t, run("--overwrite"), 0, "Copied 1 key ")
	c.want(0, `{"n": 1}`, "", "state", "get", "orders", "k001")
	wantOutput(t, run("--verify"), 1, "only in orders", "own (only in orders)")
	wantOutput(t, run("--verify", "--prefix", "k"), 0, "Compared 3 keys")
	c.want(0, "", "", "state", "set", "statestore", "k000", `0`, "--ttl", "1h")
	wantOutput(t, run("--verify", "--prefix", "k"), 1, "another value in orders")
}

func TestStateCopy_DeletesWhatOnlyTheOtherStoreHas(t *testing.T) {
	c, run := copier(t, 3)
	wantOutput(t, run(), 0, "Copied 3 keys")
	c.want(0, "", "", "state", "delete", "statestore", "k001")
	c.want(0, "", "", "state", "set", "statestore", "k002", `"changed"`)
	c.want(0, "", "", "state", "set", "orders", "own", `1`)
	wantOutput(t, run("--verify"), 1, "the stores differ in 3 keys", "--delete removes keys that only orders has")
	wantOutput(t, run("--overwrite", "--delete", "--dry-run"), 0, "Would copy 1 key ", "deleted in orders  2")
	c.want(0, `1`, "", "state", "get", "orders", "own")
	wantOutput(t, run("--overwrite", "--delete"), 0, "Copied 1 key ", "deleted in orders  2")
	c.want(1, "", "has no key", "state", "get", "orders", "k001")
	wantOutput(t, run("--verify"), 0, "Compared 2 keys")
}

func TestStateCopy_ReadsLargeValuesInParts(t *testing.T) {
	if testing.Short() {
		t.Skip("sends 36 MiB")
	}
	c, run := copier(t, 0)
	for n := range 12 { // more than one bulk read returns
		c.stdin = `"` + strings.Repeat("x", 3<<20) + `"`
		c.want(0, "", "", "state", "set", "statestore", fmt.Sprint("large", n))
	}
	wantOutput(t, run(), 0, "Copied 12 keys")
	wantOutput(t, run("--verify"), 0, "Compared 12 keys")
}

func TestStateCopy_RefusesWrongFlags(t *testing.T) {
	c, run := copier(t, 1)
	for want, args := range map[string][]string{
		"--verify excludes":                {"--verify", "--dry-run"},
		"--batch 0 is refused":             {"--batch", "0"},
		"must not be negative":             {"--rate", "-1"},
		"the same store":                   {"--to", "statestore"},
		"no state store missing":           {"--to", "missing"},
		"serves the application shop, not": {"--app", "till"},
	} {
		wantOutput(t, run(args...), 2, want)
	}
	wantOutput(t, c.run("state", "copy", "--from", "statestore"), 2, "--from and --to are required")
}
