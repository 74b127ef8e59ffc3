"""What `import fedtailor` gives."""

import pytest

import fedtailor


def test_every_name_that_is_offered_is_there():
    assert set(fedtailor.__all__) <= set(dir(fedtailor))
    for name in fedtailor.__all__:
        found = getattr(fedtailor, name)
        assert getattr(found, "__name__", name).rpartition(".")[2] == name


def test_every_method_is_there_by_the_name_of_its_class():
    for cls in fedtailor.methods.methods.classes.values():
        assert getattr(fedtailor, cls.__name__) is cls
        assert cls.__name__ in dir(fedtailor)


def test_a_method_author_needs_only_the_package():
    assert fedtailor.methods.find("fedrep") is fedtailor.FedRep
    assert fedtailor.methods.register == fedtailor.methods.methods.register
    assert fedtailor.nets.find("mlp").name == "mlp"
    assert fedtailor.partitions.find("dirichlet").name == "dirichlet"


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Simulator'"):
        _ = fedtailor.Simulator
