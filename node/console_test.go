package node_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/node"
)

// The longest valid key needs 12 KiB in a link, and a prefix can have the same size.
func TestConsole_AcceptsLinksOfLongKeys(t *testing.T) {
	c := config(t)
	c.Console.On, c.Console.Port = true, node.Port{Given: true}
	n := open(t, c)
	key := strings.Repeat("%C3%A4", 2048)
	resp, err := http.Get("http://" + n.Addresses().Console + "/state?store=statestore&prefix=" + key + "&key=" + key)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized { // not 431: the request was read
		t.Errorf("status %d", resp.StatusCode)
	}
}
