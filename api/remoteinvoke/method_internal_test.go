package remoteinvoke

import "testing"

// The method for a gRPC application must be the method in the path, which access rules check.
func TestMethodOf_RefusesAnotherMethodThanThePath(t *testing.T) {
	for _, c := range []struct{ path, text, want string }{
		{"/a%2Fb", "", ""}, {"/a%2Fb", "a%252Fb", "a%2Fb"}, {"/b", "a%2F..%2Fb", "b"}, {"/a%25b", "a%25b", "a%b"},
	} {
		if m, err := methodOf(c.path, c.text); err != nil || m.Path != c.path || m.Text != c.want {
			t.Errorf("%s with %s: %+v, %v", c.path, c.text, m, err)
		}
	}
	for path, text := range map[string]string{"/open": "admin", "/open/x": "open%2Fy", "/a%2Fb": "a%2Fb", "/a": "%zz",
		"/open/": "open%2F..%2Fadmin", "/a%2f": "a%252F"} {
		if m, err := methodOf(path, text); err == nil {
			t.Errorf("%s with %s: %+v", path, text, m)
		}
	}
}

func TestRemoteOf_LoopbackAddressesAreThoseOfTheNode(t *testing.T) {
	const node = "192.0.2.9:50001"
	for address, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1:80", "[2001:db8::1]:80": "[2001:db8::1]:80", "127.0.0.1:80": node,
		"127.0.0.9:80": node, "[::1]:80": node, "[::ffff:127.0.0.1]:80": node, "": node, "@": node,
	} {
		if got := remoteOf(address, node); got != want {
			t.Errorf("%q: %q, want %q", address, got, want)
		}
	}
}
