package cli_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func (n *memoryNode) configstore(store string) error {
	if store == "configstore" {
		return nil
	}
	return &fault.Error{Code: fault.NotFound, Op: "test", Msg: "this node has no configuration store " + store,
		Hint: "use configstore"}
}

// ConfigurationItems implements admin.Configurations.
func (n *memoryNode) ConfigurationItems(ctx context.Context, store string, keys []string) ([]configurations.Change,
	error) {
	if err := n.configstore(store); err != nil {
		return nil, err
	}
	found, err := n.items.Get(ctx, configuration.GetRequest{Keys: keys})
	return configurations.ChangesOf(found.Items), err
}

// WriteConfiguration implements admin.Configurations.
func (n *memoryNode) WriteConfiguration(ctx context.Context, store string,
	changes []configurations.Change) ([]string, error) {
	if err := n.configstore(store); err != nil {
		return nil, err
	}
	w, err := n.items.Write(ctx, configuration.WriteRequest{Changes: configurations.Changes(changes)})
	return w.Versions, err
}

// WatchConfiguration implements admin.Configurations.
func (n *memoryNode) WatchConfiguration(ctx context.Context, store string, keys []string) (configuration.Subscription,
	error) {
	if err := n.configstore(store); err != nil {
		return nil, err
	}
	return n.items.Subscribe(ctx, configuration.SubscribeRequest{Keys: keys, Initial: true})
}

func TestConfiguration_SetGetListDelete(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	c.want(0, "", "", "configuration", "set", "configstore", "log-level", "debug", "--metadata", "owner=shop")
	c.want(0, "debug\n", "", "configuration", "get", "configstore", "log-level")
	c.want(1, "", "the version given for \"log-level\" is not the current one", "configuration", "set", "configstore",
		"log-level", "info", "--version", "0")
	c.stdin = "from\nstdin"
	c.want(0, "", "", "configuration", "set", "configstore", "text")
	var item configurations.Change
	if err := json.Unmarshal([]byte(c.run("configuration", "get", "configstore", "text", "--json").stdout),
		&item); err != nil || item.Value != "from\nstdin" || item.Version == "" {
		t.Errorf("%+v, %v", item, err)
	}
	list := c.run("configuration", "list", "configstore").stdout
	if !strings.Contains(list, "log-level  1        debug") || !strings.Contains(list, `"from\nstdin"`) ||
		!strings.Contains(list, "owner=shop") {
		t.Errorf("list:\n%s", list)
	}
	c.want(0, "", "", "configuration", "delete", "configstore", "log-level", "absent")
	c.want(1, "", "has no key \"log-level\"", "configuration", "get", "configstore", "log-level")
	c.want(2, "", "--version is the version of one key", "configuration", "delete", "configstore", "a", "b",
		"--version", "1")
	c.want(1, "", "this node has no configuration store nope (use configstore)", "configuration", "list", "nope")
	c.want(1, "", "this node has no configuration store nope (use configstore)", "configuration", "watch", "nope")
}

func TestConfiguration_ImportIsAllOrNone(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	c.stdin = `{"b": "2", "a": "1"}`
	c.want(0, "2 items set in configstore\n", "", "configuration", "import", "configstore", "-")
	c.stdin = `[{"key": "a", "value": "3"}, {"key": "b", "value": "3", "version": "7"}]`
	c.want(1, "", "the version given for \"b\" is not the current one; nothing was written", "configuration", "import",
		"configstore", "-")
	c.want(0, "1\n", "", "configuration", "get", "configstore", "a")
	c.stdin = `{"a": 1}`
	c.want(2, "", "an object must have text values only", "configuration", "import", "configstore", "-")
	c.stdin = `[{"key": "a", "value": "4"}] [{"key": "b", "value": "4"}]`
	c.want(2, "", "has more text after the array of items", "configuration", "import", "configstore", "-")
	c.want(0, "1\n", "", "configuration", "get", "configstore", "a")
	c.stdin = `[{"name": "a"}]`
	c.want(2, "", "neither a JSON object of keys and values nor an array of items", "configuration", "import",
		"configstore", "-")
}

func TestConfiguration_WatchShowsChanges(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	c.want(0, "", "", "configuration", "set", "configstore", "a", "1")
	var out, errs testutil.Output
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- c.main(&out, &errs, []string{"configuration", "watch", "configstore"}).Run(ctx) }()
	shows := func(want string) {
		t.Helper()
		testutil.Eventually(t, func() error {
			if !strings.HasSuffix(out.String(), want) {
				return fault.New(fault.Internal, "test", "shown: "+out.String()+errs.String())
			}
			return nil
		})
	}
	shows(" a = 1\n")
	c.want(0, "", "", "configuration", "set", "configstore", "a", "2")
	shows(" a = 2\n")
	c.want(0, "", "", "configuration", "delete", "configstore", "a")
	shows("-        a (deleted)\n")
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("the command ended with %d: %s", code, &errs)
	}
}
