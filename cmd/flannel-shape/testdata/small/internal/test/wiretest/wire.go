package wiretest

func Exported() {}
