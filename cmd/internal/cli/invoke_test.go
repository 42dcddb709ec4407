package cli_test

import "testing"

// TestInvoke_RefusesCallsThatCannotBeSent checks that the error of a wrong call names the wrong part, and not the
// address or the node.
func TestInvoke_RefusesCallsThatCannotBeSent(t *testing.T) {
	c := newConsole(t)
	invoke := []string{"invoke", "orders", "--address", "127.0.0.1:1"}
	c.want(2, "", "the verb \"GE T\" is not valid", append(invoke, "status", "--verb", "GE T")...)
	c.want(2, "", "the header \"bad name:x\" is not valid", append(invoke, "status", "-H", "bad name:x")...)
	c.want(2, "", "the header \"a:b\\nc\" is not valid", append(invoke, "status", "-H", "a:b\nc")...)
	c.want(2, "", "the method \"a%zz\" is not a path of a URL", append(invoke, "a%zz")...)
	c.want(2, "", "the method \"a#b\" is not a path of a URL", append(invoke, "a#b")...)
	c.want(1, "", "no node listens at", append(invoke, "a b%2Fc?x=1 2")...)
}
